# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page of a run: pictures, tables and settings; it loads nothing and has no script."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from html import escape

from fedpeft.metrics import TITLES as METRICS
from fedpeft.report.history import History
from fedpeft.report.series import Mean, means
from fedpeft.report.style import STYLE
from fedpeft.report.tables import Table, all_tables
from fedpeft.report.wording import TITLES, caption, note, parts, percent, rejections

# even if a name slipped through unescaped, the browser would load and run nothing
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(
    history: History,
    picture: bytes,
    dark_picture: bytes,
    schedule: tuple[bytes, bytes] | None = None,
    fronts: tuple[bytes, bytes] | None = None,
) -> str:
    """Return the page's HTML; the same history and pictures give the same text.

    Args:
        history: the run.
        picture: the convergence picture as PNG, for light pages and print.
        dark_picture: the same for dark pages.
        schedule: the schedule picture, light and dark, if any round has a schedule.
        fronts: the picture of the solvers' fronts, light and dark, likewise.
    """
    first, *others = all_tables(history)
    text = note(history)
    warning = f'<p class="warning">{text[0].upper()}{text[1:]}.</p>' if text else ""
    refused = "".join(f"<li>{escape(line)}</li>" for line in rejections(history))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(history.job)}: federated training report</title>
<style>
{STYLE}</style>
</head>
<body>
<header>
<h1>{escape(history.job)}</h1>
<p class="method">{escape(history.method)}</p>
{warning}
</header>
<main>
{_figures(history)}
<section>
<h2>Convergence</h2>
{_picture(history, picture, dark_picture, _curves(history))}
</section>
{_schedule_section(history, schedule) if schedule else ""}
{_fronts_section(history, fronts) if fronts else ""}
<section>
<h2>{escape(first.title)}</h2>
{_table(first, caption(history))}
</section>
{"".join(f"<section><h2>{escape(t.title)}</h2>{_table(t, caption(history))}</section>" for t in others)}
{f'<section><h2>Rejected replies</h2><ul class="rejected">{refused}</ul></section>' if refused else ""}
<section>
<h2>Settings</h2>
{_settings(history)}
</section>
</main>
</body>
</html>
"""


def _figures(history: History) -> str:
    """Return the means after the last round, in large type."""
    last = dict(_last_means(history))
    cells = "".join(
        f"<div><dt>{name}</dt><dd>{percent(mean.value)}{'' if mean.value is None else '<i>%</i>'}</dd></div>"
        for name, mean in last.items()
    )
    fewer = any(mean.value is not None and not mean.complete for mean in last.values())
    about = (
        f"Mean {history.measured_by} of {'the sites that replied' if fewer else _counted(len(history.sites), 'site')}"
    )
    return f'<p class="lead">{about} after round {history.rounds[-1].round}</p>\n<dl class="figures">{cells}</dl>'


def _last_means(history: History) -> Iterator[tuple[str, Mean]]:
    """Yield title and mean of every figure; open and closed questions stand out only where all sites answer some."""
    if len(history.by_metric) == 1 and len(parts(history)) > 1:
        yield from ((TITLES[part], means(history, part)[-1]) for part in parts(history))
        return
    for metric, sites in history.by_metric.items():
        yield METRICS[metric], means(history, "overall", sites=sites)[-1]


def _curves(history: History) -> str:
    return (
        f"Curves of {history.measured_by}, training loss and transport distance over "
        f"{_counted(len(history.rounds), 'round')} for {', '.join(history.sites)}; the figures stand in the tables "
        "below."
    )


def _schedule_section(history: History, pictures: tuple[bytes, bytes]) -> str:
    described = (
        "Heat maps of every site's layer scores with the layers chosen for it marked, and how often each layer was "
        f"chosen over {_counted(len(history.scheduled), 'scheduled round')}; a table below says how many layers."
    )
    return f"<section>\n<h2>Layer schedule</h2>\n{_picture(history, *pictures, described)}\n</section>"


def _fronts_section(history: History, pictures: tuple[bytes, bytes]) -> str:
    described = (
        f"The Pareto fronts that the solvers find for the scores of round {history.scheduled[-1].round}, each beside "
        "the exact front, and the assignment that was chosen."
    )
    return (
        f"<section>\n<h2>What the schedule was chosen from</h2>\n{_picture(history, *pictures, described)}\n</section>"
    )


def _picture(history: History, picture: bytes, dark_picture: bytes, described: str) -> str:
    light, dark = (f"data:image/png;base64,{base64.b64encode(content).decode()}" for content in (picture, dark_picture))
    return (
        f'<figure><div class="wide"><picture><source media="screen and (prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(described)}"></picture></div>'
        f"<figcaption>{escape(caption(history))}</figcaption></figure>"
    )


def _table(table: Table, line: str) -> str:
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.columns)
    rows = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in table.rows
    )
    marks = f"<br>{escape(table.marks)}" if table.marks else ""
    kind = "by-site" if table.columns[0] == "site" else "by-round"
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr>{heads}</tr></thead>'
        f"\n<tbody>\n{rows}\n</tbody></table></div>"
        f'<p class="caption">{escape(line)}{marks}</p>'
    )


def _settings(history: History) -> str:
    spent = [one.seconds for one in history.rounds if one.seconds is not None]
    facts = {
        "job": history.job,
        "method": history.method,
        "source": history.source,
        "sites": ", ".join(history.sites),
        "rounds": f"{len(history.rounds)} finished, the last is round {history.rounds[-1].round}",
        **({"time of the rounds": f"{sum(spent):.1f} s, {sum(spent) / len(spent):.1f} s each"} if spent else {}),
    }
    rows = [*facts.items(), *history.settings.items()]
    cells = "\n".join(f'<tr><th scope="row">{escape(key)}</th><td>{escape(value)}</td></tr>' for key, value in rows)
    return f'<div class="wide"><table class="settings"><tbody>\n{cells}\n</tbody></table></div>'


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page of a run: pictures, tables and settings; it loads nothing and has no script."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from fedpeft.metrics import TITLES as METRICS
from fedpeft.report.history import History
from fedpeft.report.series import Mean, means
from fedpeft.report.style import STYLE
from fedpeft.report.table import MEAN, Table
from fedpeft.report.tables import all_tables
from fedpeft.report.wording import TITLES, note, parts, percent, rejections

# even if a name slipped through unescaped, the browser would load and run nothing
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """PNG files of one picture: for light pages and print, and for dark pages; the same for narrow screens."""

    light: bytes
    dark: bytes
    narrow: bytes | None = None
    narrow_dark: bytes | None = None


def page(
    history: History, curves: Picture, *, schedule: Picture | None = None, fronts: Picture | None = None, top: str = ""
) -> str:
    """Return the page's HTML; the same history and pictures give the same text.

    Args:
        history: the run.
        curves: the convergence picture.
        schedule: the schedule picture, if any round has a schedule.
        fronts: the picture of the solvers' fronts, likewise.
        top: HTML above the job's name, for a page that is served.
    """
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
{top}<header>
<h1>{escape(history.job)}</h1>
<p class="method">{escape(history.method)}</p>
{warning}
</header>
<main>
{_figures(history)}
<section>
<h2>Convergence</h2>
{_picture(curves, _curves(history))}
</section>
{_schedule_section(history, schedule) if schedule else ""}
{_fronts_section(history, fronts) if fronts else ""}
{"".join(f"<section><h2>{escape(table.title)}</h2>{_table(table)}</section>" for table in all_tables(history))}
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


def _schedule_section(history: History, picture: Picture) -> str:
    described = (
        "Heat maps of every site's layer scores with the layers chosen for it marked, and how often each layer was "
        f"chosen over {_counted(len(history.scheduled), 'scheduled round')}; a table below says how many layers."
    )
    return f"<section>\n<h2>Layer schedule</h2>\n{_picture(picture, described)}\n</section>"


def _fronts_section(history: History, picture: Picture) -> str:
    described = (
        f"The Pareto fronts that the solvers find for the scores of round {history.scheduled[-1].round}, each beside "
        "the exact front, and the assignment that was chosen."
    )
    return f"<section>\n<h2>What the schedule was chosen from</h2>\n{_picture(picture, described)}\n</section>"


def _picture(picture: Picture, described: str) -> str:
    dark, small = "(prefers-color-scheme: dark)", "(max-width: 40rem)"
    sources = (
        (picture.narrow_dark, f"screen and {small} and {dark}"),
        (picture.narrow, f"screen and {small}"),
        (picture.dark, f"screen and {dark}"),
    )
    others = "".join(f'<source media="{media}" srcset="{_data(file)}">' for file, media in sources if file)
    kind = "wide" if picture.narrow else "wide broad"
    return (
        f'<figure><div class="{kind}"><picture>{others}<img src="{_data(picture.light)}" alt="{escape(described)}">'
        f"</picture></div></figure>"
    )


def _data(file: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def _table(table: Table) -> str:
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.columns)
    by_round = table.columns[0] == "round" and all(row[0].isdigit() for row in table.rows)
    layout = "shaded" if table.shaded else "by-round" if by_round else "rows"
    first_mean = len(table.rows) - table.averages
    lines = []
    for index, row in enumerate(table.rows):
        kind = ' class="mean"' if index >= first_mean and row[0] == MEAN else ""
        shades = [_shade(cell, len(row) - 1) if table.shaded else "" for cell in row[1:]]
        cells = "".join(
            f'<td{shade} data-head="{escape(head)}">{escape(cell)}</td>'
            for shade, head, cell in zip(shades, table.columns[1:], row[1:], strict=True)
        )
        lines.append(f'<tr{kind}><th scope="row">{escape(row[0])}</th>{cells}</tr>')
    rows = "\n".join(lines)
    marks = f'<p class="caption">{escape(table.marks)}</p>' if table.marks else ""
    return (
        f'<div class="wide"><table class="{layout}"><thead><tr>{heads}</tr></thead>'
        f"\n<tbody>\n{rows}\n</tbody></table></div>{marks}"
    )


def _shade(rank: str, count: int) -> str:
    """Return the class of a rank from 1 to `count`; there are five shades, the darkest for the best."""
    return f' class="shade-{min(4, int(5 * (float(rank) - 1) / count))}"'


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

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page of a run: pictures, tables and settings; it loads nothing and has no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from fedpeft.core.metrics import TITLES as METRICS
from fedpeft.report.history import History
from fedpeft.report.page_parts import Picture, figure, headline, laid_out, page_of, section
from fedpeft.report.tables import all_tables
from fedpeft.report.wording import TITLES, Mean, means, not_learning, note, parts, rejections

SECTIONS = {
    "curves": "Convergence",
    "sent": "Communication",
    "losses": "Oscillation",
    "schedule": "Layer schedule",
    "fronts": "What the schedule was chosen from",
}


def page(history: History, pictures: Mapping[str, Picture], *, top: str = "") -> str:
    """Return the page's HTML; the same history and pictures (`plots.pictures`) give the same text.

    `top` is HTML above the job's name, for a page that is served.
    """
    refused = "".join(f"<li>{escape(line)}</li>" for line in rejections(history))
    return page_of(
        f"{history.job}: federated training report",
        history.job,
        history.method,
        warnings=(note(history), *not_learning(history)),
        figures=_figures(history),
        top=top,
        sections=(
            *(section(SECTIONS[name], figure(one, _described(history, name))) for name, one in pictures.items()),
            *(section(table.title, laid_out(table)) for table in all_tables(history)),
            section("Rejected replies", f'<ul class="rejected">{refused}</ul>') if refused else "",
            section("Settings", _settings(history)),
        ),
    )


def state_line(text: str) -> str:
    """Return a line above the page with the state of a run that has not completed; empty for no text."""
    return f'<p class="live">{escape(text)}</p>\n' if text else ""


def _figures(history: History) -> str:
    """Return the means after the last round, in large type."""
    last = dict(_last_means(history))
    fewer = any(mean.value is not None and not mean.complete for mean in last.values())
    of = "the sites that replied" if fewer else _counted(len(history.sites), "site")
    lead = f"Mean {history.measured_by} of {of} after round {history.rounds[-1].round}"
    return headline(lead, {name: mean.value for name, mean in last.items()})


def _last_means(history: History) -> Iterator[tuple[str, Mean]]:
    """Yield title and mean of every figure; open and closed questions stand out only where all sites answer some."""
    if len(history.by_metric) == 1 and len(parts(history)) > 1:
        yield from ((TITLES[part], means(history, part)[-1]) for part in parts(history))
        return
    for metric, sites in history.by_metric.items():
        yield METRICS[metric], means(history, "overall", sites=sites)[-1]


def _described(history: History, picture: str) -> str:
    """Return what a picture shows, for those who do not see it."""
    if picture == "curves":
        return (
            f"Curves of {history.measured_by}, training loss and transport distance over "
            f"{_counted(len(history.rounds), 'round')} for {', '.join(history.sites)}; the figures stand in the tables "
            "below."
        )
    if picture == "sent":
        return (
            f"Curves of {history.measured_by} against the MB of adapters that a site had sent, for "
            f"{', '.join(history.sites)} and their mean; a table below has what each sent in each round."
        )
    if picture == "losses":
        return f"Lines through the losses at the start and the end of every round, for {', '.join(history.sites)}."
    if picture == "schedule":
        return (
            "Heat maps of every site's layer scores with the layers chosen for it marked, and how often each layer was "
            f"chosen over {_counted(len(history.scheduled), 'scheduled round')}; a table below says how many layers."
        )
    return (
        f"The Pareto fronts that the solvers find for the scores of round {history.scheduled[-1].round}, each beside "
        "the exact front, and the assignment that was chosen."
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

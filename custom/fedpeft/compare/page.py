# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page of a comparison: table, what stands below it, and the picture."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedpeft.compare.forms import Comparison
from fedpeft.compare.outcome import Outcome, caution_of
from fedpeft.compare.picture import seeds_of
from fedpeft.core.metrics import title_of
from fedpeft.report.page_parts import Picture, document, figure, laid_out, section, warning
from fedpeft.report.table import Table

STYLE = """\
.rows th, .rows td { white-space: normal; }
.rows th, .rows td { padding-left: .4rem; padding-right: .4rem; }
.rows th:first-child { padding-left: 0; min-width: 9rem; }
"""


def page(comparison: Comparison, picture: Picture, outcomes: Sequence[Outcome], *, top: str = "") -> str:
    """Return the page's HTML; the same runs and picture give the same text.

    Args:
        comparison: the table.
        picture: of the same runs.
        outcomes: the runs.
        top: HTML above the title, for a page that is served.
    """
    caution = caution_of(outcomes)
    notes = [note for note in comparison.notes if note != f"{caution}."]  # it stands at the top
    table = Table(
        title="", columns=comparison.columns, rows=comparison.rows, marks="", averages=0, best=comparison.best
    )
    below = "".join(f'<p class="caption">{escape(note)}</p>' for note in notes)
    metric = title_of(metric for one in outcomes for metric in one.metrics.values())
    methods = ", ".join(dict.fromkeys(one.method for one in outcomes))
    curves = f"Curves of {metric} by round, and against the MB that all sites had sent, for {methods}."
    body = "\n".join(
        (
            section("Methods", laid_out(table) + below),
            section("Convergence and communication", figure(picture, curves)),
        )
    )
    return document(
        f"{comparison.title}: comparison",
        f"""{top}<header>
<h1>{escape(comparison.title)}</h1>
<p class="method">{escape(seeds_of(outcomes))}</p>
{warning(caution)}
</header>
<main>
{body}
</main>""",
        more_style=STYLE,
    )

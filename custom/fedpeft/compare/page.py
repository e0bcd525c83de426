# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page of a comparison: table, what stands below it, and the picture.

The picture of a comparison: convergence with a band over seeds, and accuracy against what was sent.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from html import escape

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedpeft.compare.outcome import Outcome, caution_of
from fedpeft.compare.table import Comparison
from fedpeft.core.metrics import TITLES, title_of
from fedpeft.report.page_parts import Picture, document, figure, laid_out, section, warning
from fedpeft.report.palette import DISTINCT, SIDE_BY_SIDE, Theme, line_style, set_apart, shorten
from fedpeft.report.plots import NARROW, described_png, in_all_forms, under_style
from fedpeft.report.tables import Table

WIDTH, HEIGHT = 7.2, 2.7  # inches, of a row of panels
LETTERS = 34  # of a method's name in the legend


def picture(outcomes: Sequence[Outcome]) -> Picture:
    """Return the picture: for each metric, left by round, right by MB sent; on narrow pages one below the other.

    Lines are means over seeds, bands reach from the lowest to the highest seed. The right panel stands where all runs
    counted what they sent; methods that send nothing are points on its left edge.
    """
    several = len({one.method for one in outcomes}) > 1
    return in_all_forms(
        lambda theme, narrow: _figure(outcomes, theme, narrow=narrow), title(outcomes), SIDE_BY_SIDE * several
    )


def picture_file(outcomes: Sequence[Outcome]) -> bytes:
    """Return the wide picture as a PNG file of its own, which also says the task, the seeds and the caution."""
    figure = under_style(lambda theme: _figure(outcomes, theme, narrow=False, framed=True), dark=False)
    return described_png(figure, title(outcomes))


def _figure(outcomes: Sequence[Outcome], theme: Theme, *, narrow: bool, framed: bool = False) -> Figure:
    metrics = list(dict.fromkeys(metric for one in outcomes for metric in one.metrics.values()))
    methods = list(dict.fromkeys(one.method for one in outcomes))
    counted = all(one.sent for one in outcomes)
    down, across = (len(metrics) * (1 + counted), 1) if narrow else (len(metrics), 1 + counted)
    columns = 1 if narrow else 3
    height = HEIGHT * down + 0.5 + 0.16 * math.ceil(len(methods) / columns)
    figure = Figure(figsize=(NARROW if narrow else WIDTH, height), facecolor=theme.paper, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharey=False if narrow else "row")
    panels = panels.reshape(len(metrics), 1 + counted)
    for index, (metric, row) in enumerate(zip(metrics, panels, strict=True), 1):
        drawn: list[list[list[Line2D]]] = [[] for _ in row]
        for number, method in enumerate(methods):
            runs = [one for one in outcomes if one.method == method]
            style = line_style(number % DISTINCT, min(len(methods), DISTINCT), theme)
            curves = [one.curve(metric) for one in runs]
            drawn[0].append(_draw(row[0], curves, None, style, method))
            if counted:
                drawn[1].append(_draw(row[1], curves, [one.megabytes() for one in runs], style, method))
        for axes, lines in zip(row, drawn, strict=True):
            set_apart(axes, lines)
        row[0].set_ylabel(f"{TITLES[metric]}, mean of the sites (%)")
        row[-1].set_ylabel(f"{TITLES[metric]}, mean of the sites (%)" if narrow or not counted else "")
        row[0].xaxis.get_major_locator().set_params(integer=True)
        for axes, place in zip(row, ("round", "MB that a site had sent"), strict=False):
            axes.grid(axis="y", color=theme.grid, linewidth=0.6)
            axes.set_xlabel(place if narrow or index == len(metrics) else "")
    handles = {shown.get_label(): shown for shown in panels[0][0].lines}
    names = [shorten(str(name), LETTERS) for name in handles]
    figure.legend(handles.values(), names, loc="outside lower center", ncols=columns, frameon=False, fontsize=7.5)
    if framed:
        figure.suptitle(title(outcomes), x=0.01, ha="left", fontsize=8.5, color=theme.ink)
    return figure


def _draw(
    axes: Axes, curves: Sequence[Sequence[float]], places: Sequence[Sequence[float]] | None, style: dict, label: str
) -> list[Line2D]:
    """Draw a method; return its line, or its point."""
    rounds = min(map(len, curves))
    means = [statistics.fmean(curve[i] for curve in curves) for i in range(rounds)]
    if places is None:
        where = [float(i + 1) for i in range(rounds)]
    else:
        where = [statistics.fmean(place[i] for place in places) for i in range(rounds)]
    if where[-1] == 0:  # nothing was sent
        return axes.plot(0, means[-1], marker="D", markersize=4, color=style["color"], linestyle="none", label=label)
    if len(curves) > 1:
        low, high = ([choose(curve[i] for curve in curves) for i in range(rounds)] for choose in (min, max))
        axes.fill_between(where, low, high, color=style["color"], alpha=0.13, linewidth=0)
    return axes.plot(where, means, label=label, marker="o" if rounds == 1 else "", **style)


def title(outcomes: Sequence[Outcome]) -> str:
    """Return what the picture shows: task, seeds, and what its figures do not say."""
    return "\n".join(filter(None, (f"{outcomes[0].task}, {seeds_of(outcomes)}", caution_of(outcomes))))


def seeds_of(outcomes: Sequence[Outcome]) -> str:
    """Return how many seeds there are, and what the bands are."""
    seeds = len({one.seed for one in outcomes})
    return f"{seeds} seeds, bands from the lowest to the highest" if seeds > 1 else "one seed"


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
    curves = f"Curves of {metric} by round, and against the MB that a site had sent, for {methods}."
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

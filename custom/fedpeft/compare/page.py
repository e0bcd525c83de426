# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The page and the picture of a comparison: one self-contained HTML file with the table and its notes.

The picture shows convergence with a band over seeds, and accuracy against what was sent.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedpeft.compare.outcome import Outcome, caution_of, max_seeds, metrics_of
from fedpeft.core.metrics import TITLES, title_of
from fedpeft.core.text import capitalized
from fedpeft.report.loss_plot import BY_STEP, COURSE, losses_by_site, panels_figure, rise_text
from fedpeft.report.loss_plot import TITLE as LOSSES
from fedpeft.report.page_parts import Picture, figure, laid_out, page_of, section
from fedpeft.report.palette import (
    DISTINCT,
    LIGHT,
    SIDE_BY_SIDE,
    Frame,
    drawn,
    line_style,
    point_style,
    set_apart,
    shorten,
    svg,
)
from fedpeft.report.tables import Table

WIDTH, HEIGHT, COLUMNS = 7.2, 2.7, 3  # inches of a row of panels; columns of the legend
LETTERS = 34  # of a method's name in the legend
STYLE = """\
.rows th, .rows td { white-space: normal; }
.rows th, .rows td { padding-left: .4rem; padding-right: .4rem; }
.rows th:first-child { padding-left: 0; min-width: 9rem; }
"""


def picture(outcomes: Sequence[Outcome]) -> Picture:
    """Return the picture: for each metric, left by round, right by MB sent.

    Lines are means over seeds, bands reach from the lowest to the highest seed. There is a right panel if all runs
    counted what they sent; methods that send nothing are points on its left edge.
    """
    several = len({run.method for run in outcomes}) > 1
    return Picture(svg(drawn(lambda: _figure(outcomes)), title(outcomes)), caption=SIDE_BY_SIDE * several)


def picture_file(outcomes: Sequence[Outcome]) -> bytes:
    """Return the picture as a file of its own, which also says the task, the seeds and the caution."""
    return svg(drawn(lambda: _figure(outcomes, framed=True)), title(outcomes))


def losses(outcomes: Sequence[Outcome]) -> dict[str, dict[str, np.ndarray]]:
    """Return the losses of every round by method and site, means over seeds.

    If some runs measured the course of the loss, only these are shown, not those that measured its ends.
    """
    runs: dict[str, list[dict[str, np.ndarray]]] = {}
    by_step = _has_course(outcomes)
    for run in outcomes:
        points = run.loss_course if by_step else (run.loss_start, run.loss_end)
        if measured := losses_by_site(*points):
            runs.setdefault(run.method, []).append(measured)
    common = {method: [site for site in of[0] if all(site in run for run in of)] for method, of in runs.items()}
    return {method: {site: _mean([run[site] for run in runs[method]]) for site in common[method]} for method in runs}


def _has_course(outcomes: Sequence[Outcome]) -> bool:
    return any(run.loss_course for run in outcomes)


def _mean(of_seeds: Sequence[np.ndarray]) -> np.ndarray:
    rounds = min(map(len, of_seeds))
    return np.mean([losses[:rounds] for losses in of_seeds], axis=0)


def losses_file(outcomes: Sequence[Outcome], *, framed: bool = True) -> bytes | None:
    """Return the picture of these losses, with what it shows above it if framed; None: no run measured them."""
    panels = losses(outcomes)
    if not panels:
        return None
    head = [(COURSE if _has_course(outcomes) else LOSSES, "soft", "normal")]
    if caution := caution_of(outcomes):
        head.append((capitalized(caution) + ".", "warning", "bold"))
    seeds = max_seeds(outcomes)
    shown = f"{outcomes[0].task}, {f'means of {seeds} seeds' if seeds > 1 else 'one seed'}"
    frame = Frame(title=shown, head=head) if framed else None
    return svg(panels_figure(panels, frame), title(outcomes))


def _losses_section(outcomes: Sequence[Outcome]) -> str:
    drawing = losses_file(outcomes, framed=False)
    if drawing is None:
        return ""
    changes = [f"{method} {text}" for method, by_site in losses(outcomes).items() if (text := rise_text(by_site))]
    means = ", means over seeds" if max_seeds(outcomes) > 1 else ""
    if by_step := _has_course(outcomes):
        caption = f"{COURSE}{means}. {BY_STEP}"
    else:
        caption = f"Loss on the same training samples at the start and the end of every round{means}."
    if changes:
        caption += f" Mean change from the end of a round to the start of the next: {'; '.join(changes)}."
    points = "in the course" if by_step else "at the start and the end"
    described = f"Lines through the losses {points} of every round, a panel for each method."
    return section("Oscillation", figure(Picture(drawing, caption=caption), described))


def _figure(outcomes: Sequence[Outcome], *, framed: bool = False) -> Figure:
    metrics = metrics_of(outcomes)
    by_method: dict[str, list[Outcome]] = {}
    for run in outcomes:
        by_method.setdefault(run.method, []).append(run)
    counted = all(run.sent for run in outcomes)
    height = HEIGHT * len(metrics) + 0.5 + 0.16 * math.ceil(len(by_method) / COLUMNS)
    figure = Figure(figsize=(WIDTH, height), facecolor=LIGHT.paper, layout="constrained")
    panels = figure.subplots(len(metrics), 1 + counted, squeeze=False, sharey="row")
    for metric, row in zip(metrics, panels, strict=True):
        _draw_row(row, metric, by_method, last=metric == metrics[-1])
    handles = {shown.get_label(): shown for shown in panels[0][0].lines}
    names = [shorten(str(name), LETTERS) for name in handles]
    figure.legend(handles.values(), names, loc="outside lower center", ncols=COLUMNS, frameon=False, fontsize=7.5)
    if framed:
        figure.suptitle(title(outcomes), x=0.01, ha="left", fontsize=8.5, color=LIGHT.ink)
    return figure


def _draw_row(row: Sequence[Axes], metric: str, by_method: Mapping[str, Sequence[Outcome]], *, last: bool) -> None:
    """Draw a metric of all methods by round and, in a second panel if there is one, by what was sent."""
    for axes, by_round in zip(row, (True, False), strict=False):
        lines = []
        for number, (method, runs) in enumerate(by_method.items()):
            style = line_style(number % DISTINCT, min(len(by_method), DISTINCT))
            places = None if by_round else [run.megabytes() for run in runs]
            lines.append(_draw(axes, [run.curve(metric) for run in runs], places, style, point_style(number), method))
        set_apart(axes, lines)
        axes.grid(axis="y", color=LIGHT.grid, linewidth=0.6)
        axes.set_xlabel(("round" if by_round else "MB that a site had sent") if last else "")
    row[0].set_ylabel(f"{TITLES[metric]}, mean of the sites (%)")
    row[0].xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1))


def _draw(
    axes: Axes,
    curves: Sequence[Sequence[float]],
    places: Sequence[Sequence[float]] | None,
    style: dict,
    point: dict,
    label: str,
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
    return axes.plot(where, means, label=label, **(style | point if rounds == 1 else style))


def title(outcomes: Sequence[Outcome]) -> str:
    """Return the title of the picture: task, seeds and caution."""
    return "\n".join(filter(None, (f"{outcomes[0].task}, {seeds_of(outcomes)}", caution_of(outcomes))))


def seeds_of(outcomes: Sequence[Outcome]) -> str:
    """Return the number of seeds in words, and what the bands mean."""
    seeds = max_seeds(outcomes)
    return f"{seeds} seeds, bands from the lowest to the highest" if seeds > 1 else "one seed"


def page(comparison: Table, picture: Picture, outcomes: Sequence[Outcome], *, top: str = "") -> str:
    """Return the page's HTML; the same runs and picture give the same text.

    `top` is HTML above the title, for a page that is served.
    """
    caution = caution_of(outcomes)
    notes = tuple(note for note in comparison.notes if note != f"{caution}.")  # it is at the top
    metric = title_of(metrics_of(outcomes))
    methods = ", ".join(dict.fromkeys(run.method for run in outcomes))
    curves = f"Curves of {metric} by round, and against the MB that a site had sent, for {methods}."
    return page_of(
        f"{comparison.title}: comparison",
        comparison.title,
        seeds_of(outcomes),
        warnings=(caution,),
        sections=(
            section("Methods", laid_out(replace(comparison, notes=notes))),
            section("Convergence and communication", figure(picture, curves)),
            _losses_section(outcomes),
        ),
        top=top,
        more_style=STYLE,
    )

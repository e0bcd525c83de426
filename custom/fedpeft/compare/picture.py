# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The picture of a comparison: convergence with a band over seeds, and accuracy against what was sent."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpeft.compare.outcome import Outcome
from fedpeft.metrics import TITLES
from fedpeft.report.palette import DISTINCT, Theme, line_style
from fedpeft.report.plots import described_png, under_style
from fedpeft.report.wording import caution

WIDTH, HEIGHT = 7.2, 2.7  # inches, of a row of panels
LETTERS = 34  # of a method's name in the legend


def picture(outcomes: Sequence[Outcome]) -> bytes:
    """Return the picture as PNG: for each metric, left by round, right by Mbit sent.

    Lines are means over seeds, bands reach from the lowest to the highest seed. The right panel stands where all runs
    counted what they sent; methods that send nothing are points on its left edge.
    """
    return described_png(under_style(lambda theme: _figure(outcomes, theme), dark=False), _title(outcomes))


def _figure(outcomes: Sequence[Outcome], theme: Theme) -> Figure:
    metrics = list(dict.fromkeys(metric for one in outcomes for metric in one.metrics.values()))
    methods = list(dict.fromkeys(one.method for one in outcomes))
    counted = all(one.sent for one in outcomes)
    height = HEIGHT * len(metrics) + 0.5 + 0.16 * math.ceil(len(methods) / 3)
    figure = Figure(figsize=(WIDTH, height), facecolor=theme.paper, layout="constrained")
    panels = figure.subplots(len(metrics), 1 + counted, squeeze=False, sharey="row")
    for metric, row in zip(metrics, panels, strict=True):
        for number, method in enumerate(methods):
            runs = [one for one in outcomes if one.method == method]
            style = line_style(number, min(len(methods), DISTINCT), theme)
            _draw(row[0], [one.curve(metric) for one in runs], None, style, method)
            if counted:
                _draw(row[1], [one.curve(metric) for one in runs], [one.megabits() for one in runs], style, method)
        row[0].set_ylabel(f"{TITLES[metric]}, mean of the sites (%)")
        for axes in row:
            axes.grid(axis="y", color=theme.grid, linewidth=0.6)
    panels[-1][0].set_xlabel("round")
    panels[-1][0].xaxis.get_major_locator().set_params(integer=True)
    if counted:
        panels[-1][1].set_xlabel("Mbit sent by all sites together")
    handles = {shown.get_label(): shown for shown in panels[0][0].lines}
    names = [textwrap.shorten(str(name), LETTERS, placeholder="…") for name in handles]
    figure.legend(handles.values(), names, loc="outside lower center", ncols=3, frameon=False, fontsize=7.5)
    figure.suptitle(_title(outcomes), x=0.01, ha="left", fontsize=8.5, color=theme.ink)
    return figure


def _draw(
    axes: Axes, curves: Sequence[Sequence[float]], places: Sequence[Sequence[float]] | None, style: dict, label: str
) -> None:
    rounds = min(map(len, curves))
    means = [statistics.fmean(curve[i] for curve in curves) for i in range(rounds)]
    if places is None:
        where = [float(i + 1) for i in range(rounds)]
    else:
        where = [statistics.fmean(place[i] for place in places) for i in range(rounds)]
    if where[-1] == 0:  # nothing was sent
        axes.plot(0, means[-1], marker="D", markersize=4, color=style["color"], linestyle="none", label=label)
        return
    if len(curves) > 1:
        low, high = ([choose(curve[i] for curve in curves) for i in range(rounds)] for choose in (min, max))
        axes.fill_between(where, low, high, color=style["color"], alpha=0.13, linewidth=0)
    axes.plot(where, means, label=label, marker="o" if rounds == 1 else "", **style)


def _title(outcomes: Sequence[Outcome]) -> str:
    seeds = len({one.seed for one in outcomes})
    count = f"{seeds} seeds, bands from the lowest to the highest" if seeds > 1 else "one seed"
    words = caution(procedural=any(one.procedural for one in outcomes), tiny=any(one.tiny for one in outcomes))
    return "\n".join(filter(None, (f"{outcomes[0].task}, {count}", words)))

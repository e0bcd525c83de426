# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The loss between two sites' adapters, before and after alignment, from the results of cases.py (`publish.py`)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import barrier
import cases
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpeft.report.palette import COLORS, LIGHT

LINES = (barrier.BEFORE, barrier.BY_WEIGHTS, barrier.BY_ACTIVATIONS)
WIDTH, HEIGHT = 2.5, 2.8  # of one panel, in inches


def draw(
    results: Sequence[Mapping[str, Any]], names: Sequence[str] = tuple(cases.CASES), *, width: float = WIDTH
) -> Figure:
    """One panel for each case: the mean over seeds, and every seed as a thin line.

    Args:
        results: of `cases.py`.
        names: of the cases.
        width: of one panel, in inches.
    """
    shown = {name: [r for r in results if r["case"] == name and r["lines"]] for name in names}
    shown = {name: runs for name, runs in shown.items() if runs}
    figure = Figure(figsize=(width * len(shown), HEIGHT), layout="constrained", facecolor=LIGHT.paper)
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for panel, (name, runs) in zip(panels, shown.items(), strict=True):
        _panel(panel, name, runs)
    panels[0].set_ylabel("loss under the site's own head", color=LIGHT.soft, fontsize=8)
    # an unaligned line is missing where widths differ, so that the legend is made from all panels
    named = {label: line for panel in panels for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(
        [named[name] for name in LINES if name in named],
        [name for name in LINES if name in named],
        loc="outside lower center",
        ncols=len(LINES),
        frameon=False,
        fontsize=8,
        labelcolor=LIGHT.ink,
    )
    return figure


def _panel(panel: Axes, name: str, runs: Sequence[Mapping[str, Any]]) -> None:
    for number, line in enumerate(LINES):
        rows = [run["lines"][line] for run in runs if line in run["lines"]]
        if not rows:
            continue
        if len(rows) > 1:
            for row in rows:
                panel.plot(barrier.POINTS, row, color=COLORS[number], linewidth=0.6, alpha=0.4)
        mean = [statistics.fmean(values) for values in zip(*rows, strict=True)]
        panel.plot(barrier.POINTS, mean, color=COLORS[number], linewidth=1.8, label=line)
    panel.set_title(name.replace("_", " "), loc="left", fontsize=9, color=LIGHT.ink)
    panel.set_xticks((0, 0.5, 1), ("own", "half", "other's"), color=LIGHT.soft, fontsize=8)
    panel.tick_params(axis="y", labelsize=8, labelcolor=LIGHT.soft)
    panel.grid(axis="y", color=LIGHT.grid)
    panel.spines[["top", "right", "left"]].set_visible(False)

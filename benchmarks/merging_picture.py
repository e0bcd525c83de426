# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The accuracy of merged adapters, from the results of merging.py (`publish.py`).

One panel for each kind of adapters, with both figures: the mean over the seeds and its 95 % interval. Of PEFT's
combinations it shows the one with the highest mean of a figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import merging
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpeft.compare.table import interval
from fedpeft.report.palette import COLORS, LIGHT

BEST = "best of PEFT's ways"
# way -> color and marker, in the order of a group
WAYS = {
    merging.OWN: (LIGHT.soft, "D"),
    merging.PLAIN: (COLORS[1], "s"),
    BEST: (COLORS[2], "^"),
    merging.MERGED: (COLORS[0], "o"),
}
HEADS = ("site's head", "new head")
APART = 0.17  # of two ways, where two groups are 1 apart
Runs = Sequence[Mapping[str, Any]]


def draw(results: Runs) -> Figure:
    """A panel for each kind that has results."""
    kinds = {kind: runs for kind in merging.KINDS if (runs := [one for one in results if one["kind"] == kind])}
    with mpl.rc_context({"font.size": 8, "axes.edgecolor": LIGHT.soft}):
        figure = Figure(figsize=(2 * len(kinds), 2.9), layout="constrained", facecolor=LIGHT.paper)
        panels = figure.subplots(1, len(kinds), squeeze=False)[0]
        for panel, (kind, runs) in zip(panels, kinds.items(), strict=True):
            _panel(panel, kind, runs)
        panels[0].set_ylabel("accuracy, %", color=LIGHT.soft)
        marks = [
            mpl.lines.Line2D([], [], color=color, marker=marker, linestyle="none", label=way)
            for way, (color, marker) in WAYS.items()
        ]
        figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, labelcolor=LIGHT.ink)
    return figure


def shown(runs: Runs, which: int) -> dict[str, tuple[float, float]]:
    """Way -> mean over the seeds and half of its 95 % interval, of the first or the second figure."""
    figures = {way: [run["figures"][way][which] for run in runs] for way in runs[0]["figures"]}
    means = {way: interval(values) for way, values in figures.items()}
    of_peft = [mean for way, mean in means.items() if way.startswith("PEFT ")]
    best = {BEST: max(of_peft)} if of_peft else {}
    return {way: one for way in WAYS if (one := {**means, **best}.get(way)) is not None}


def _panel(panel: Axes, kind: str, runs: Runs) -> None:
    for which in range(len(HEADS)):
        of_ways = shown(runs, which)
        for place, (way, (mean, half)) in enumerate(of_ways.items()):
            color, marker = WAYS[way]
            x = which + (place - (len(of_ways) - 1) / 2) * APART
            panel.errorbar(x, mean, half, color=color, marker=marker, markersize=5, elinewidth=1.2, capsize=2)
    panel.set_title(kind, loc="left", fontsize=8, color=LIGHT.ink)
    panel.set_xticks(range(len(HEADS)), HEADS, color=LIGHT.ink)
    panel.set_xlim(-0.5, len(HEADS) - 0.5)
    panel.tick_params(axis="y", labelcolor=LIGHT.soft)
    panel.grid(axis="y", color=LIGHT.grid)
    panel.spines[["top", "right", "left"]].set_visible(False)

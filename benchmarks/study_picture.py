# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The study's picture, from the results of `learning.py --study` (`publish.py`).

Above: mean accuracy of the sites by round, one panel for each number of swapped pairs, the band from the lowest to the
highest seed. Below: which method is best in which round, and by how many points, over the same worlds; methods that are
not run in every world of the picture are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpeft.report.palette import COLORS, LIGHT

SHOWN = ("fedavg", "fedpia, server only", "ours", "ditto", "fedala", "local")
Curves = dict[int, dict[str, dict[int, list[float]]]]  # swapped pairs -> method -> seed -> percent by round


def curves(results: Sequence[Mapping[str, Any]], rounds: int) -> Curves:
    """Mean accuracy of the sites by round, of runs of this length."""
    found: Curves = {}
    for result in results:
        if len(result["rounds"]) == rounds and result["method"] in SHOWN:
            by_round = [100 * statistics.fmean(site["overall"] for site in r.values()) for r in result["rounds"]]
            found.setdefault(result["dialects"], {}).setdefault(result["method"], {})[result["seed"]] = by_round
    return dict(sorted(found.items()))


def draw(results: Sequence[Mapping[str, Any]], rounds: int) -> Figure:
    """The picture of runs of one length."""
    worlds = curves(results, rounds)
    with mpl.rc_context({"font.size": 8, "axes.edgecolor": LIGHT.soft, "axes.labelcolor": LIGHT.soft}):
        figure = Figure(figsize=(7.2, 4.2), layout="constrained", facecolor=LIGHT.paper)
        above, below = figure.subfigures(2, 1, height_ratios=(2.6, 1))
        panels = above.subplots(1, len(worlds), sharey=True, squeeze=False)[0]
        for panel, (pairs, methods) in zip(panels, worlds.items(), strict=True):
            _draw_curves(panel, methods)
            panel.set_title(f"{pairs} of 7 pairs of words swapped, {_seeds(methods)}", fontsize=8, loc="left")
            panel.set_xlabel("round")
        panels[0].set_ylabel("accuracy, %")
        lines = {line.get_label(): line for panel in panels for line in panel.lines}
        above.legend(lines.values(), lines, loc="outside lower center", ncols=len(lines), frameon=False, fontsize=7.5)
        _draw_best(below.subplots(), worlds, rounds)
    return figure


def _seeds(methods: Mapping[str, Mapping[int, Sequence[float]]]) -> str:
    counts = sorted({len(seeds) for seeds in methods.values()})
    few = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return f"{few} seed{'s' * (few != '1')}"


def _draw_curves(panel: Axes, methods: Mapping[str, Mapping[int, Sequence[float]]]) -> None:
    for name in (name for name in SHOWN if name in methods):
        by_round = list(zip(*methods[name].values(), strict=True))
        numbers = range(1, len(by_round) + 1)
        color = COLORS[SHOWN.index(name)]
        low, high = [min(r) for r in by_round], [max(r) for r in by_round]
        panel.fill_between(numbers, low, high, color=color, alpha=0.12, lw=0)
        panel.plot(numbers, [statistics.fmean(r) for r in by_round], color=color, lw=1.4, label=name)
    panel.grid(color=LIGHT.grid, lw=0.6)
    panel.spines[["top", "right"]].set_visible(False)


def _draw_best(axes: Axes, worlds: Curves, rounds: int) -> None:
    """Cells of world and round in the color of the best method, with its lead over the second in points."""
    everywhere = [name for name in SHOWN if all(name in methods for methods in worlds.values())]
    for row, methods in enumerate(worlds.values()):
        for number in range(rounds):
            means = {n: statistics.fmean(seed[number] for seed in methods[n].values()) for n in everywhere}
            first, second = sorted(means, key=means.__getitem__, reverse=True)[:2]
            color = COLORS[SHOWN.index(first)]
            axes.add_patch(mpl.patches.Rectangle((number + 0.5, row - 0.5), 1, 1, facecolor=color, alpha=0.6))
            lead = f"{means[first] - means[second]:.1f}"
            axes.text(number + 1, row, lead, ha="center", va="center", fontsize=6.5, color=LIGHT.ink)
    axes.set(xlim=(0.5, rounds + 0.5), ylim=(-0.5, len(worlds) - 0.5), xlabel="round")
    axes.set_yticks(range(len(worlds)), [f"{pairs} swapped" for pairs in worlds])
    title = f"the best of: {'; '.join(everywhere)}; and its lead over the second in points"
    axes.set_title(title, fontsize=8, loc="left")
    axes.spines[:].set_visible(False)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The study's picture, from the results of `learning.py --study` (`publish.py`).

Curves: mean accuracy of the sites by round, one panel for each world and length of a run, the band from the lowest to
the highest seed. Below: which method of all that ran in a world is best in which round, and by how many points over the
second; faint where the 95 % interval of that difference over the seeds includes 0, blank where the lead is below a
twentieth of a point.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import study
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpeft.compare.table import interval, paired
from fedpeft.report.palette import COLORS, LIGHT

SHOWN = (
    "fedavg",
    "fedpia, server only",
    "ours",
    "fedavg, keeping by agreement",
    "ditto",
    study.WEIGHT_SPACE,
    "local",
    study.TWO_BRANCHES,
    study.FROZEN_HALF,
)
MORE_COLORS = ("#F0E442", "#999999", "#8B5A2B", "#B8B0E0", "#C5E0A0", "#E0B0C8", "#A0C8C8")  # only in cells
CLEAR, FAINT = 0.75, 0.25  # opacity of a cell
ALIKE = 0.05  # points: a smaller lead is printed as 0.0
Seeds = Mapping[int, Sequence[float]]  # seed -> percent by round
Worlds = dict[int, dict[str, dict[int, list[float]]]]  # swapped pairs -> method -> seed -> percent by round


def curves(results: Sequence[Mapping[str, Any]], rounds: int) -> Worlds:
    """Mean accuracy of the sites by round, of the runs of this length whose sites train all layers."""
    worlds: Worlds = {}
    for result in results:
        if len(result["rounds"]) == rounds and result["method"] in study.METHODS:
            by_round = [100 * statistics.fmean(site["overall"] for site in r.values()) for r in result["rounds"]]
            worlds.setdefault(result["dialects"], {}).setdefault(result["method"], {})[result["seed"]] = by_round
    return dict(sorted(worlds.items()))


def draw(results: Sequence[Mapping[str, Any]]) -> Figure:
    """The picture of the runs of both lengths."""
    groups = {rounds: worlds for rounds in (study.SHORT, study.LONG) if (worlds := curves(results, rounds))}
    with mpl.rc_context({"font.size": 8, "axes.edgecolor": LIGHT.soft, "axes.labelcolor": LIGHT.soft}):
        figure = Figure(figsize=(7.2, 2.1 * len(groups) + 1.3 * len(groups) + 0.3), layout="constrained")
        figure.set_facecolor(LIGHT.paper)
        above, below = figure.subfigures(2, 1, height_ratios=(2.2, 1.2))
        for row, worlds in zip(above.subfigures(len(groups), 1, squeeze=False)[:, 0], groups.values(), strict=True):
            panels = row.subplots(1, len(worlds), sharey=True, squeeze=False)[0]
            for panel, (pairs, methods) in zip(panels, worlds.items(), strict=True):
                _draw_curves(panel, {name: methods[name] for name in SHOWN if name in methods})
                panel.set_title(f"{pairs} of 7 pairs swapped, {_seeds(methods)}", fontsize=8, loc="left")
                panel.set_xlabel("round")
            panels[0].set_ylabel("accuracy, %")
        axes = below.subplots(len(groups), 1, squeeze=False, height_ratios=[len(w) for w in groups.values()])[:, 0]
        winners = {name for one, group in zip(axes, groups.items(), strict=True) for name in _draw_best(one, *group)}
        axes[0].set_title(
            "the best method in each round and its lead over the second in points; faint: not clear of 0; blank: alike",
            fontsize=8,
            loc="left",
        )
        axes[-1].set_xlabel("round")
        ran = {name for worlds in groups.values() for methods in worlds.values() for name in methods}
        named = [name for name in SHOWN if name in ran]
        named += [name for name in study.METHODS if name in winners and name not in SHOWN]
        handles = [mpl.lines.Line2D([], [], color=_color(name), lw=2.5, label=name) for name in named]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=7.5)
    return figure


def _color(method: str) -> str:
    order = (*SHOWN, *(name for name in study.METHODS if name not in SHOWN))
    return (*COLORS, LIGHT.ink, *MORE_COLORS)[order.index(method)]


def _seeds(methods: Mapping[str, Seeds]) -> str:
    counts = sorted({len(seeds) for seeds in methods.values()})
    few = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return f"{few} seed{'s' * (few != '1')}"


def _draw_curves(panel: Axes, methods: Mapping[str, Seeds]) -> None:
    for name, seeds in methods.items():
        by_round = list(zip(*seeds.values(), strict=True))
        numbers = range(1, len(by_round) + 1)
        low, high = [min(r) for r in by_round], [max(r) for r in by_round]
        panel.fill_between(numbers, low, high, color=_color(name), alpha=0.12, lw=0)
        panel.plot(numbers, [statistics.fmean(r) for r in by_round], color=_color(name), lw=1.4)
    panel.grid(color=LIGHT.grid, lw=0.6)
    panel.spines[["top", "right"]].set_visible(False)


def _draw_best(axes: Axes, rounds: int, worlds: Worlds) -> set[str]:
    """Draw cells of world and round in the color of the best method, with its lead over the second in points, none
    where there is no lead; return the best methods."""
    winners = set()
    for row, methods in enumerate(worlds.values()):
        for number in range(rounds):
            first, lead, clear = best({name: _at(seeds, number) for name, seeds in methods.items()})
            if lead is not None and lead < ALIKE:
                continue
            winners.add(first)
            opacity = CLEAR if clear else FAINT
            cell = mpl.patches.Rectangle((number + 0.5, row - 0.5), 1, 1, facecolor=_color(first), alpha=opacity)
            axes.add_patch(cell)
            size = 6.5 if rounds <= study.SHORT else 5
            axes.text(
                number + 1,
                row,
                "" if lead is None else f"{lead:.1f}",
                ha="center",
                va="center",
                fontsize=size,
                color=LIGHT.ink,
            )
    axes.set(xlim=(0.5, rounds + 0.5), ylim=(-0.5, len(worlds) - 0.5))
    names = [f"{pairs} swapped\n{len(methods)} methods" for pairs, methods in worlds.items()]
    axes.set_yticks(range(len(worlds)), names)
    axes.tick_params(axis="y", labelsize=6.5)
    axes.spines[:].set_visible(False)
    return winners


def _at(seeds: Seeds, number: int) -> dict[int, float]:
    return {seed: by_round[number] for seed, by_round in seeds.items()}


def best(methods: Mapping[str, Mapping[int, float]]) -> tuple[str, float | None, bool]:
    """The method with the highest mean over its seeds, its lead over the second, and whether that is clear of 0.

    Args:
        methods: method -> seed -> percent; one method or more. One alone has no lead, None, and two without a seed in
            common none that is clear.
    """
    means = {name: statistics.fmean(seeds.values()) for name, seeds in methods.items()}
    first, *others = sorted(means, key=means.__getitem__, reverse=True)
    if not others:
        return first, None, False
    pairs = paired(methods[first], methods[others[0]])
    mean, half = interval(pairs) if pairs else (0.0, 0.0)
    return first, means[first] - means[others[0]], mean > half

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The pictures of README and of the pages about adapters, alignment and scheduling.

python docs/draw_concepts.py        # writes exchange.png, adapters.png, alignment.png and scheduling.png in docs

The alignment and the schedule in them are computed, by `transport_plan` and `exact_front`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from fedpeft.alignment import transport_plan
from fedpeft.report.palette import COLORS, LIGHT
from fedpeft.scheduling import exact_front

BLUE = COLORS[0]
FOLDER = Path(__file__).parent
DPI = 200
FROZEN = "#ededed"


def main() -> None:
    """Write all pictures."""
    for name in PICTURES:
        draw(name).savefig(FOLDER / f"{name}.png", dpi=DPI, metadata={"Software": None})


def draw(name: str) -> Figure:
    """Return one of the pictures."""
    with mpl.rc_context({"font.size": 9, "text.color": LIGHT.ink}):
        return PICTURES[name]()


def draw_exchange() -> Figure:
    """Who sends what to whom in a round: three hospitals, the server, and what stays where it is."""
    figure = Figure(figsize=(7.2, 2.9), facecolor=LIGHT.paper)
    axes = figure.subplots()
    _blank(axes, "Blue leaves a hospital, gray stays there", width=36, height=14.4)
    for row, name in enumerate("CBA"):
        low = 0.3 + 4.8 * row
        _box(axes, 0, low, 12.6, 4, "", FROZEN)
        axes.text(0.5, low + 3.1, f"hospital {name}", va="center", weight="bold")
        axes.text(0.5, low + 1.3, "images, texts, answers\nclassifier, optimizer", va="center", fontsize=8)
        _box(axes, 9.1, low + 1.2, 3, 1.6, "adapter", BLUE, ink="white")
        axes.annotate("", (26, low + 2.7), (13, low + 2.7), arrowprops=_arrow(BLUE))
        axes.annotate("", (13, low + 1.3), (26, low + 1.3), arrowprops=_arrow(LIGHT.soft))
        axes.text(19.5, low + 3.3, "adapter, accuracies, counts", ha="center", va="center", color=BLUE, fontsize=8.5)
        axes.text(19.5, low + 0.6, "global adapter", ha="center", va="center", color=LIGHT.soft, fontsize=8.5)
    _box(axes, 26.4, 0.3, 9.6, 13.6, "", f"{BLUE}22")
    axes.text(31.2, 12.2, "server", ha="center", va="center", weight="bold")
    for step, text in enumerate(("checks every reply", "puts neurons\nin one order", "averages", "schedules layers")):
        axes.text(31.2, 9.8 - 2.4 * step, text, ha="center", va="center", fontsize=8.5)
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.9)
    return figure


def draw_adapters() -> Figure:
    """A transformer layer with the two slots of an adapter, and the adapter itself."""
    figure = Figure(figsize=(7.2, 3.1), facecolor=LIGHT.paper)
    layer, adapter = figure.subplots(1, 2, width_ratios=(1.7, 1))
    _blank(layer, "A transformer layer: gray is frozen, blue is trained", width=17, height=8)
    layer.annotate("", (17.4, 1.6), (-0.4, 1.6), arrowprops=_arrow(LIGHT.ink), zorder=0)
    for left, block in ((0.2, "self-\nattention"), (8.6, "feed-\nforward")):
        _box(layer, left, 4.4, 2.8, 2, block, FROZEN)
        layer.annotate("", (left + 1.4, 4.4), (left + 1.4, 1.6), arrowprops=_arrow(LIGHT.soft))
    _box(layer, 4.3, 4.4, 2.8, 2, "adapter", BLUE, ink="white")
    layer.annotate("", (4.3, 5.4), (3.0, 5.4), arrowprops=_arrow(LIGHT.soft))
    layer.annotate("", (5.7, 2.1), (5.7, 4.4), arrowprops=_arrow(LIGHT.soft))
    layer.plot((11.4, 12.2), (5.4, 5.4), color=LIGHT.soft, lw=1.1)
    layer.annotate("", (12.2, 2.1), (12.2, 5.4), arrowprops=_arrow(LIGHT.soft))
    for place in (5.7, 12.2):
        layer.text(place, 1.6, "+", ha="center", va="center", bbox=_round(LIGHT.ink))
    _box(layer, 13.4, 0.6, 2.8, 2, "adapter", BLUE, ink="white")
    layer.text(5.7, 6.7, "slot attention", ha="center", color=BLUE, weight="bold")
    layer.text(14.8, 2.9, "slot output", ha="center", color=BLUE, weight="bold")
    layer.text(-0.4, 0.7, "residual stream, width d", color=LIGHT.soft)

    _blank(adapter, "An adapter:  h + up(act(down(h)))", width=10, height=8)
    for left, right, first, second in ((1.2, 5.0, 7, 3), (5.0, 8.8, 3, 7)):
        for a in _heights(first):
            for b in _heights(second):
                adapter.plot((left, right), (a, b), color=LIGHT.soft, lw=0.4, zorder=0)
    for left, count, face in ((1.2, 7, LIGHT.paper), (5.0, 3, BLUE), (8.8, 7, LIGHT.paper)):
        edge = BLUE if face == BLUE else LIGHT.soft
        adapter.scatter([left] * count, _heights(count), s=60, facecolor=face, edgecolor=edge)
    for left, text in ((1.2, "d"), (5.0, "r neurons"), (8.8, "d")):
        adapter.text(left, 0.6, text, ha="center")
    for left, text in ((3.1, "down"), (6.9, "up")):
        adapter.text(left, 6.6, text, ha="center")
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.9, wspace=0.08)
    return figure


def draw_alignment() -> Figure:
    """Two sites' neurons in two orders: averaged as they stand, and after the plan has ordered the second's."""
    generator = torch.Generator().manual_seed(3)
    trend = torch.linspace(-1, 1, 5)[:, None] * torch.tensor([1.0, -0.6, 0.8, 0.3])
    first = trend + 0.4 * torch.randn(5, 4, generator=generator)  # (r, d)
    order = torch.tensor([2, 4, 0, 1, 3])
    second = first[order] + 0.08 * torch.randn(5, 4, generator=generator)
    to = transport_plan(second, first).argmax(dim=1).tolist()  # neuron i of `second` is neuron to[i] of `first`
    aligned = torch.empty_like(second)
    aligned[to] = second
    scale = float(max(first.abs().max(), second.abs().max()))

    figure = Figure(figsize=(7.2, 2.9), facecolor=LIGHT.paper)
    axes = figure.subplots()
    columns = (
        (0.0, first, "site A", range(5)),
        (6.2, second, "site B", to),
        (16.2, aligned, "B in A's order", range(5)),
        (24.6, (first + second) / 2, "A and B,\naveraged", None),
        (31.2, (first + aligned) / 2, "aligned,\naveraged", None),
    )
    for left, rows, title, names in columns:
        axes.text(left + 2, 6, title, ha="center", weight="bold", color=LIGHT.ink)
        for row, values in enumerate(rows):
            for place, value in enumerate(values):
                color = mpl.colormaps["PuOr"](0.5 - float(value) / scale / 2)
                axes.add_patch(Rectangle((left + place, 4.8 - row), 1, 0.85, facecolor=color, edgecolor="white"))
            if names:
                axes.text(left - 0.3, 5.2 - row, "abcde"[names[row]], ha="right", va="center", color=LIGHT.ink)
        if not names:
            away = float((rows - first).norm() / first.norm())
            axes.text(left + 2, 0.4, f"{100 * away:.0f} %\naway from A", ha="center", va="top", color=LIGHT.ink)
    for row, place in enumerate(to):
        axes.plot((10.6, 15.0), (5.2 - row, 5.2 - place), color=COLORS[row], lw=1.6)
    axes.text(12.8, 0.4, "plan", ha="center", va="top", color=LIGHT.soft)
    axes.text(-0.9, 0.4, "row: a neuron\ncell: a weight", va="top", color=LIGHT.soft)
    axes.set(xlim=(-1.1, 35.6), ylim=(-1.3, 7.6), xticks=[], yticks=[])
    axes.axis("off")
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0, top=1)
    return figure


def draw_scheduling() -> Figure:
    """Scores of layers at four sites, the layers that each would choose, and those that it is scheduled."""
    rng = np.random.default_rng(1)
    sites, layers, budget = 4, 8, 3
    raw = np.exp(0.32 * np.arange(layers) + 0.35 * rng.standard_normal((sites, layers)))
    scores = raw / raw.sum(axis=1, keepdims=True)  # (N, L)
    front = exact_front(scores, budget)
    best, scheduled = front.masks[-1], front.masks[len(front) // 2]

    figure = Figure(figsize=(7.2, 2.9), facecolor=LIGHT.paper)
    panels = figure.subplots(1, 2, sharey=True)
    titles = f"Each site's {budget} best layers", "Scheduled: importance and balance"
    for panel, mask, title in zip(panels, (best, scheduled), titles, strict=True):
        panel.set_title(title, loc="left", fontsize=9.5, weight="bold", color=LIGHT.ink)
        for (site, layer), score in np.ndenumerate(scores):
            trained = mask[site, layer]
            panel.add_patch(Rectangle((layer + 0.55, site - 0.42), 0.9, 0.84, facecolor=BLUE if trained else FROZEN))
            style = {"color": "white", "weight": "bold"} if trained else {"color": LIGHT.ink}
            panel.text(layer + 1, site, f"{100 * score:.0f}", ha="center", va="center_baseline", **style)
        for layer, count in enumerate(mask.sum(axis=0), start=1):
            panel.text(layer, sites - 0.1, f"{count}", ha="center", va="center_baseline", color=LIGHT.ink)
        panel.set(xlim=(0.5, layers + 0.5), ylim=(sites + 0.3, -0.5), xticks=range(1, layers + 1))
        panel.set_xlabel("layer", color=LIGHT.ink)
        panel.tick_params(length=0, colors=LIGHT.ink)
        panel.spines[:].set_visible(False)
    panels[0].set_yticks([*range(sites), sites - 0.1], [*(f"site {name}" for name in "ABCD"), "sites that train it"])
    figure.subplots_adjust(left=0.16, right=0.99, bottom=0.16, top=0.9, wspace=0.06)
    return figure


def _blank(axes: Axes, title: str, *, width: float, height: float) -> None:
    axes.set(xlim=(-0.5, width + 0.5), ylim=(0, height), xticks=[], yticks=[])
    axes.set_title(title, loc="left", fontsize=9.5, weight="bold", color=LIGHT.ink)
    axes.axis("off")


def _box(
    axes: Axes, left: float, low: float, width: float, height: float, text: str, color: str, *, ink: str = LIGHT.ink
) -> None:
    box = FancyBboxPatch((left, low), width, height, "round,pad=0,rounding_size=0.2", facecolor=color, edgecolor="none")
    axes.add_patch(box)
    axes.text(left + width / 2, low + height / 2, text, ha="center", va="center", color=ink, fontsize=8.5)


def _arrow(color: str) -> dict:
    return {"arrowstyle": "-|>", "color": color, "lw": 1.1, "shrinkA": 0, "shrinkB": 0}


def _round(color: str) -> dict:
    return {"boxstyle": "circle,pad=0.15", "facecolor": LIGHT.paper, "edgecolor": color, "lw": 1}


def _heights(count: int) -> np.ndarray:
    return 3.7 + 0.75 * (np.arange(count) - (count - 1) / 2)


PICTURES: dict[str, Callable[[], Figure]] = {
    "exchange": draw_exchange,
    "adapters": draw_adapters,
    "alignment": draw_alignment,
    "scheduling": draw_scheduling,
}

if __name__ == "__main__":
    main()

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Pictures of one site's page: how often each answer occurs in training and test, and the map of features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedpeft.data.schema import Example
from fedpeft.report.data_summary import counted_as
from fedpeft.report.palette import COLORS, Theme, shorten, text_width
from fedpeft.report.plots import DPI, NARROW

MOST_BARS = 20
MARKS = ("o", "s", "^", "D", "v", "P")  # of the colors, for readers who do not tell these apart
NO_LABEL, SEVERAL, OTHER = "no label", "several labels", "other"
LONGEST = 24  # letters of an answer
SIZE = 7.5  # points
# inches
WIDTH, ROW, TOP, BOTTOM, EDGE = 8.0, 0.25, 0.32, 0.42, 0.14
MAP, LEGEND_ROW = 4.2, 0.19

Draw = Callable[[Theme, bool], Figure]  # whether the page is narrow


def distribution(train: Sequence[Example], test: Sequence[Example]) -> Draw:
    """Draw the share of the examples of both splits that have each of the most frequent answers or labels."""
    shares = [
        {name: count / len(examples) for name, count in Counter(n for e in examples for n in counted_as(e)).items()}
        for examples in (train, test)
    ]
    names = sorted({n for one in shares for n in one}, key=lambda n: (-sum(one.get(n, 0) for one in shares), n))
    shown = names[:MOST_BARS]

    def draw(theme: Theme, narrow: bool) -> Figure:
        width = NARROW if narrow else WIDTH
        texts = [shorten(name, LONGEST) for name in shown]
        left = EDGE + 0.1 + max(text_width(text, SIZE) for text in texts)
        high = ROW * len(shown)
        total = TOP + high + BOTTOM
        figure = Figure(figsize=(width, total), dpi=DPI, facecolor=theme.paper)
        axes = figure.add_axes((left / width, BOTTOM / total, (width - left - EDGE) / width, high / total))
        rows = np.arange(len(shown))
        for side, name, one, color in zip((-0.2, 0.2), ("training", "test"), shares, COLORS, strict=False):
            axes.barh(rows + side, [100 * one.get(n, 0) for n in shown], height=0.36, color=color, label=name)
        axes.set_yticks(rows, texts, fontsize=SIZE)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.grid(axis="x", color=theme.grid, linewidth=0.6)
        axes.set_xlabel("examples that have it (%)", labelpad=2)
        look: dict[str, Any] = {"frameon": False, "fontsize": SIZE, "borderaxespad": 0.2, "handlelength": 1}
        figure.legend(loc="upper right", ncols=2, **look)
        return figure

    return draw


def others(train: Sequence[Example], test: Sequence[Example]) -> int:
    """Return how many answers or labels the picture of the distribution leaves out."""
    return max(0, len({name for example in (*train, *test) for name in counted_as(example)}) - MOST_BARS)


def feature_map(points: np.ndarray, examples: Sequence[Example]) -> Draw:
    """Draw points of a plane, with color and shape of the most frequent answers or labels.

    Args:
        points: of the examples, (n, 2).
        examples: n.
    """
    groups = [_group(example) for example in examples]
    frequent = [name for name, _ in sorted(Counter(groups).items(), key=lambda item: (-item[1], item[0]))]
    named = frequent[: len(COLORS)]

    def draw(theme: Theme, narrow: bool) -> Figure:
        width, columns = (NARROW, 2) if narrow else (WIDTH, 3)
        side = min(MAP, width - 2 * EDGE)
        rows = -(-(len(named) + (len(frequent) > len(named))) // columns)
        total = side + EDGE + LEGEND_ROW * rows + 0.1
        figure = Figure(figsize=(width, total), dpi=DPI, facecolor=theme.paper)
        axes = figure.add_axes((EDGE / width, 1 - (EDGE + side) / total, (width - 2 * EDGE) / width, side / total))
        small = 16.0 if len(examples) <= 300 else 8.0
        rest = [group not in named for group in groups]
        for name, color, mark in zip(named, COLORS, MARKS, strict=False):
            own = [group == name for group in groups]
            x, y = points[own].T
            label = shorten(name, LONGEST)
            axes.scatter(x, y, s=small, color=color, marker=mark, linewidth=0, alpha=0.85, label=label)
        if any(rest):
            label = f"{len(frequent) - len(named):,} {OTHER}"
            x, y = points[rest].T
            axes.scatter(x, y, s=0.6 * small, color=theme.soft, linewidth=0, alpha=0.5, label=label)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(True)
        axes.spines[:].set_color(theme.grid)
        figure.legend(
            loc="lower left", ncols=columns, frameon=False, fontsize=SIZE, handletextpad=0.2, borderaxespad=0.2
        )
        return figure

    return draw


def _group(example: Example) -> str:
    if example.labels is None:
        return example.answer
    return SEVERAL if len(example.labels) > 1 else next(iter(example.labels), NO_LABEL)

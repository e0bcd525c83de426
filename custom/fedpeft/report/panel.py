# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One panel of a picture: a quantity of every site, and the mean of the sites, over the rounds or what was sent."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedpeft.report.coinciding import set_apart
from fedpeft.report.history import History
from fedpeft.report.palette import BRIDGE, DISTINCT, Theme, line_style
from fedpeft.report.series import Places, means, series

MANY_ROUNDS = 12  # more than these, and markers hide the lines


def draw(
    axes: Axes,
    history: History,
    quantity: str,
    title: str,
    theme: Theme,
    *,
    scale: float = 1,
    places: Places | None = None,
) -> None:
    """Draw a quantity into axes.

    Args:
        axes: where.
        history: the run.
        quantity: one of ``series.QUANTITIES``.
        title: stands over the panel, with the unit.
        theme: colors.
        scale: factor on the figures; 100 makes percent, which stay within 0 and 100.
        places: where the figures stand from left to right; None: at their rounds.
    """
    rounds = np.array([one.round for one in history.rounds])
    places_of = places.sites if places else {}
    lines = series(history, quantity)
    sparse = len(rounds) <= MANY_ROUNDS
    curves = []
    for index, (site, line) in enumerate(lines.items()):
        style, size = line_style(index, len(lines), theme), 3.2 if sparse and len(lines) <= DISTINCT else 0
        curves.append(_line(axes, places_of.get(site, rounds), scale * np.array(line, dtype=float), style, size))
    if len(lines) > 1:
        average = means(history, quantity)
        values = scale * np.array([mean.value for mean in average], dtype=float)
        where = places.mean if places else rounds
        look = {"color": theme.ink, "linewidth": 2.2, "zorder": 4}
        curves.append(_line(axes, where, values, look, 4.4 if sparse else 0))
        fewer = np.array([not mean.complete for mean in average])
        hollow: dict[str, Any] = {
            "markerfacecolor": theme.paper,
            "markeredgecolor": theme.ink,
            "markeredgewidth": 1.1,
            "zorder": 5,
        }
        curves[-1] += axes.plot(where[fewer], values[fewer], linestyle="none", marker="o", markersize=4.4, **hollow)
    axes.set_title(title, loc="left", fontsize=8.5, fontweight="bold", pad=6)
    axes.grid(axis="y", color=theme.grid, linewidth=0.6)
    _fit_height(axes, scale)
    if len(lines) <= DISTINCT:
        set_apart(axes, curves)
    if not places:
        _fit_rounds(axes, rounds)


def _line(axes: Axes, places: np.ndarray, values: np.ndarray, style: dict, size: float) -> list[Line2D]:
    """Draw a line, dotted bridges over rounds without a figure, markers (size 0: only where a figure has no neighbor).

    Args:
        axes: where.
        places: (T,) numbers of the rounds, or what had been sent after them.
        values: (T,) NaN for none.
        style: color, dashes and width of the line.
        size: of the markers, in points.
    """
    drawn = axes.plot(places, values, **style)
    known = np.isfinite(values)
    for left, right in pairwise(np.flatnonzero(known)):
        if right - left > 1:
            ends = [left, right]
            drawn += axes.plot(places[ends], values[ends], **{**style, "linestyle": BRIDGE, "linewidth": 0.9})
    padded = np.pad(known, 1)
    marked = known if size else known & ~padded[:-2] & ~padded[2:]
    look = {key: style[key] for key in ("color", "alpha", "zorder") if key in style}
    drawn += axes.plot(
        places[marked], values[marked], linestyle="none", marker="o", markersize=size or 2.5, mew=0, **look
    )
    return drawn


def _fit_height(axes: Axes, scale: float) -> None:
    """Fit the height to the figures: a single figure in the middle, percent never outside 0 to 100."""
    values = np.concatenate([line.get_ydata() for line in axes.lines])
    values = values[np.isfinite(values)]
    low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    pad = 0.07 * (high - low)
    if low == high:
        pad = 10 if scale == 100 else 0.5 * abs(high) or 1
    floor, ceiling = (-1, 101) if scale == 100 else (-np.inf, np.inf)
    axes.set_ylim(max(low - pad, floor), min(high + pad, ceiling))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7 if scale == 100 else 5, steps=[1, 2, 2.5, 5, 10]))


def _fit_rounds(axes: Axes, rounds: np.ndarray) -> None:
    """Fit the width to the rounds, which are whole."""
    margin = 0.03 * (rounds[-1] - rounds[0]) or 0.5
    axes.set_xlim(rounds[0] - margin, rounds[-1] + margin)
    if len(rounds) <= 6:
        axes.set_xticks(rounds)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Lines that would cover each other are drawn side by side, so that every one is seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

SIDE_BY_SIDE = "Lines that coincide are drawn side by side."
CLOSE = 0.006  # of the height of the axes, less than the width of a line
# points
LINES, MARKERS, MOST = 2.0, 5.0, 14.0


def set_apart(axes: Axes, curves: Sequence[Sequence[Line2D]]) -> None:
    """Shift curves that coincide over a stretch, or whose only points do, up or down by a few points.

    Args:
        axes: with its final height limits.
        curves: of each, what belongs to it; the first has all its figures.
    """
    low, high = axes.get_ylim()
    points = [_known(own[0]) for own in curves]
    for group in _groups(points, CLOSE * (high - low)):
        step = LINES if any(len(points[one][0]) > 1 for one in group) else MARKERS
        step = min(step, MOST / max(len(group) - 1, 1))
        for place, one in enumerate(group):
            shift = ScaledTranslation(0, ((len(group) - 1) / 2 - place) * step / 72, axes.figure.dpi_scale_trans)
            for artist in curves[one]:
                artist.set_transform(axes.transData + shift)


def _known(line: Line2D) -> tuple[np.ndarray, np.ndarray]:
    x, y = (np.asarray(values, dtype=float) for values in line.get_data())
    return x[np.isfinite(y)], y[np.isfinite(y)]


def _groups(points: Sequence[tuple[np.ndarray, np.ndarray]], close: float) -> list[list[int]]:
    """Return the groups of two and more; who coincides with one of a group belongs to it."""
    groups: list[list[int]] = []
    for one in range(len(points)):
        near = [group for group in groups if any(_coincide(points[one], points[other], close) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append(sorted([*(member for group in near for member in group), one]))
    return [group for group in groups if len(group) > 1]


def _coincide(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray], close: float) -> bool:
    (x, y), (u, v) = one, other
    if not len(x) or not len(u) or (len(x) == 1) != (len(u) == 1):
        return False
    if len(x) == 1:
        return bool(np.isclose(x[0], u[0]) and abs(y[0] - v[0]) <= close)
    both = np.unique(np.concatenate([x, u]))
    both = both[(both >= max(x[0], u[0])) & (both <= min(x[-1], u[-1]))]
    near = np.abs(np.interp(both, x, y) - np.interp(both, u, v)) <= close
    return bool(np.any(near[1:] & near[:-1]))

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Colors and line styles of the picture, light and dark.

The labels beside the lines: their text, their width, and positions at which none covers another.

Lines that would cover each other are drawn side by side, so that every one is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.transforms import ScaledTranslation
from scipy.optimize import isotonic_regression

from fedpeft.report.history import History
from fedpeft.report.series import Places, means, series
from fedpeft.report.wording import percent

# Okabe and Ito's set for color-blind readers (https://jfly.uni-koeln.de/color/) but its black, which is the mean's,
# and yellow, which does not show on white
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)))
BRIDGE = (0, (0.8, 2))  # over rounds without a figure
DISTINCT = len(COLORS) * len(DASHES)


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colors of paper, text, secondary text, grid and the warning line."""

    paper: str
    ink: str
    soft: str
    grid: str
    warning: str


LIGHT = Theme(paper="#ffffff", ink="#1a1a1a", soft="#5c5c5c", grid="#e4e4e4", warning="#9c3d00")
DARK = Theme(paper="#16181c", ink="#f2f2f2", soft="#a8abb2", grid="#30343b", warning="#ffb070")


def line_style(index: int, count: int, theme: Theme) -> dict:
    """Return the style of a site's line: six colors, then the same dashed and dotted; beyond that all are alike.

    Args:
        index: number of the site, from 0.
        count: number of sites; above ``DISTINCT`` styles do not distinguish them.
        theme: light or dark.
    """
    if count > DISTINCT:
        return {"color": theme.soft, "linestyle": "solid", "linewidth": 0.6, "alpha": 0.45}
    return {"color": COLORS[index % len(COLORS)], "linestyle": DASHES[index // len(COLORS)], "linewidth": 1.3}


GAP = 0.155  # inches between the middles of two labels
LEADER = 0.3  # inches from the axes to the labels
SIZE = 7.5  # points
MAX_LENGTH = 26  # letters of a site's name


@dataclass(frozen=True, kw_only=True)
class Label:
    """A line's last figure: its round, or other place from left to right, whether the run or the other lines go on
    behind it, the value in percent, the text, the look."""

    place: float
    late: bool
    value: float
    text: str
    style: dict
    weight: str = "normal"


def end_labels(history: History, theme: Theme, places: Places | None = None) -> list[Label]:
    """Return one label for every site's last accuracy and the mean's; with more sites than styles best, worst, mean.

    Args:
        history: the run.
        theme: colors.
        places: where the figures stand from left to right; None: at their rounds.
    """
    lines = series(history, "overall")
    rounds = [one.round for one in history.rounds]
    farthest = max(line[-1] for line in places.sites.values()) if places else rounds[-1]
    labels: list[Label] = []

    def add(
        name: str,
        line: Sequence[float | None],
        at: Sequence[float] | np.ndarray,
        style: dict,
        weight: str = "normal",
    ) -> None:
        known = [index for index, value in enumerate(line) if value is not None]
        if not known:
            return
        last = known[-1]
        ended = "" if last == len(rounds) - 1 else f" (round {rounds[last]})"
        text = f"{name}  {percent(line[last])}{ended}"
        late, value = bool(ended) or at[last] < farthest, 100 * line[last]
        labels.append(Label(place=at[last], late=late, value=value, text=text, style=style, weight=weight))

    for index, (site, line) in enumerate(lines.items()):
        at = places.sites[site] if places else rounds
        add(shorten(site, MAX_LENGTH), line, at, line_style(index, len(lines), theme))
    if len(lines) > DISTINCT:
        ranked = sorted(labels, key=lambda label: label.value)
        labels = [ranked[-1], ranked[0]] if len(ranked) > 1 else ranked
    if len(lines) > 1:
        name = "mean" if len(lines) <= DISTINCT else f"mean of {len(lines)} sites"
        average = [mean.value for mean in means(history, "overall")]
        add(name, average, places.mean if places else rounds, {"color": theme.ink, "linewidth": 2.2}, weight="bold")
    return labels


def label_width(labels: Sequence[Label]) -> float:
    """Return the width of the labels beside the axes in inches, leaders included."""
    return LEADER + max(text_width(label.text, SIZE) for label in labels) if labels else 0.0


@lru_cache(maxsize=4096)  # the same labels stand in every form of a picture
def text_width(text: str, size: float) -> float:
    """Return the width of a text in bold letters in inches; `size` is in points."""
    font = FontProperties(family="DejaVu Sans", weight="bold")
    return TextPath((0, 0), text, size=size, prop=font).get_extents().width / 72


def write_labels(axes: Axes, labels: Sequence[Label], theme: Theme) -> None:
    """Write the labels to the right of the axes, each connected to the end of its line.

    Args:
        axes: the accuracy panel, with its size and limits set.
        labels: from ``end_labels``.
        theme: colors.
    """
    (low, high), (first, last) = axes.get_ylim(), axes.get_xlim()
    across = (last - first) / (axes.bbox.width / axes.figure.dpi)  # rounds per inch
    gap = GAP * (high - low) / (axes.bbox.height / axes.figure.dpi)
    places = spread([label.value for label in labels], gap=gap, low=low, high=high)
    for label, place in zip(labels, places, strict=True):
        # dotted where the site has no figure in the last round, since a solid leader there would read as one
        leader = {"color": label.style["color"], "linewidth": 0.7, "clip_on": False, "zorder": 1}
        leader |= {"linestyle": BRIDGE} if label.late else {}
        bend, end = last + 0.04 * across, last + (LEADER - 0.05) * across
        axes.plot([label.place, bend, end], [label.value, label.value, place], **leader)
        look: dict[str, Any] = {"color": theme.ink, "fontsize": SIZE, "fontweight": label.weight}
        axes.text(last + LEADER * across, place, label.text, va="center_baseline", **look)


def shorten(name: str, longest: int) -> str:
    """Shorten a name to at most `longest` letters in its middle, since names often differ at their ends."""
    if len(name) <= longest:
        return name
    tail = (longest - 1) // 2
    return f"{name[: longest - 1 - tail]}…{name[len(name) - tail :]}"


def spread(positions: Sequence[float], *, gap: float, low: float, high: float) -> np.ndarray:
    """Move labels apart by as little as possible, in order.

    Minimizes sum_i (y_i - x_i)^2 subject to y_(i+1) >= y_i + gap and low <= y_i <= high over the sorted positions x.
    With z_i = y_i - i*gap this is isotonic regression, and its bounded form is the unbounded one, clipped.

    Args:
        positions: (n,) where the labels belong.
        gap: least distance between neighbors, in the unit of the positions; smaller where n labels do not fit.
        low: lowest place.
        high: highest place.

    Returns:
        (n,) places, in the order of the positions.

    Source: Barlow, Bartholomew, Bremner and Brunk, Statistical Inference under Order Restrictions, 1972.
    """
    targets = np.asarray(positions, dtype=float)
    count = len(targets)
    if count == 0:
        return targets
    steps = np.arange(count) * min(gap, (high - low) / max(count - 1, 1))
    order = np.argsort(targets, kind="stable")
    places = np.empty(count)
    places[order] = np.clip(isotonic_regression(targets[order] - steps).x, low, high - steps[-1]) + steps
    return places


SIDE_BY_SIDE = "Lines that coincide are drawn side by side."
CLOSE = 0.006  # of the height of the axes, less than the width of a line
# points
LINES, MARKERS, MAX = 2.0, 5.0, 14.0


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
        step = min(step, MAX / max(len(group) - 1, 1))
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

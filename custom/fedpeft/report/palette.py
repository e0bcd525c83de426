# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How every picture looks: colors, lines, letters, what is around the panels, and the file.

A picture is one SVG file. It is drawn for light pages, and its style sheet exchanges the colors of paper and text where
the reader prefers dark pages; a program that reads no style sheet shows the light picture. What would need thousands of
elements, such as the lines of hundreds of sites, is a raster image within it, in colors that both pages bear.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.transforms import ScaledTranslation
from scipy.optimize import isotonic_regression

from fedpeft.core.text import capitalized
from fedpeft.report.history import History
from fedpeft.report.wording import note

# Okabe and Ito's set for color-blind readers (https://jfly.uni-koeln.de/color/) but its black, which is the mean's,
# and yellow, which does not show on white
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)))
FORMS = ("o", "s", "^")  # of points, which show no dashes
BRIDGE = (0, (0.8, 2))  # over rounds without a figure
DISTINCT = len(COLORS) * len(DASHES)
GRAY = "#828282"  # of lines in a raster image, on light and dark pages
SIDE_BY_SIDE = "Lines that coincide are drawn side by side."
CLOSE = 0.006  # of the height of the axes, less than the width of a line
# points
LINE_STEP, MARKER_STEP, MAX_SHIFT = 2.0, 5.0, 14.0


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
DPI = 200  # of raster images
TOP, UNFRAMED, BOTTOM, LINE = 0.62, 0.3, 0.5, 0.15  # inches
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters on every machine
    "font.size": 8,
    "text.parse_math": False,  # a site may be called a$b$
    "text.color": LIGHT.ink,
    "axes.labelcolor": LIGHT.soft,
    "axes.edgecolor": LIGHT.soft,
    "axes.facecolor": LIGHT.paper,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "xtick.color": LIGHT.soft,
    "ytick.color": LIGHT.soft,
    "xtick.major.width": 0.6,
    "ytick.major.size": 0,
}
# the colors are written in style attributes, which only !important outranks
_DARK_RULES = "".join(
    f'[style*="{kind}: {light}"]{{{kind}: {getattr(DARK, name)} !important}}'
    for name, light in vars(LIGHT).items()
    for kind in ("fill", "stroke")
)


def line_style(index: int, count: int) -> dict:
    """Return the style of one line of `count`: six colors, then these dashed and dotted; beyond that all are alike."""
    if count > DISTINCT:
        return {"color": GRAY, "linestyle": "solid", "linewidth": 0.6, "alpha": 0.6, "rasterized": True}
    return {"color": COLORS[index % len(COLORS)], "linestyle": DASHES[index // len(COLORS)], "linewidth": 1.3}


def point_style(index: int) -> dict:
    """Return the style of a line's points: another form when colors repeat, and whole at the end of an axis."""
    return {"marker": FORMS[index // len(COLORS) % len(FORMS)], "markersize": 3.5, "clip_on": False}


class Drawing(NamedTuple):
    """A picture that a run has."""

    name: str  # of its file
    section: str  # title of its section on the page
    draw: Callable[..., Figure]  # takes the history, and `framed`
    explained: str  # line below it on the page, and at the foot of its file
    described: str  # for those who do not see it


def drawn(make: Callable[[], Figure]) -> Figure:
    """Make a figure in the report's style, independent of the user's own."""
    with matplotlib.style.context(["default", STYLE]):
        figure = make()
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()  # ticks are made while drawing: make them while the style holds
    return figure


def svg(figure: Figure, description: str) -> bytes:
    """Return a picture as SVG with a description in it; the same figure and matplotlib give the same bytes."""
    file = io.BytesIO()
    metadata = {"Date": None, "Creator": None, "Description": description}
    with matplotlib.style.context(["default", {"svg.hashsalt": "fedpeft"}]):
        figure.savefig(file, format="svg", dpi=DPI, facecolor=figure.get_facecolor(), metadata=metadata)
    dark = f"@media screen and (prefers-color-scheme: dark){{{_DARK_RULES}}}</style>"
    return file.getvalue().replace(b"</style>", dark.encode(), 1)


def png(figure: Figure, description: str) -> bytes:
    """Return a picture as PNG, without a date, with a description in the file."""
    file = io.BytesIO()
    metadata = {"Software": None, "Description": description}
    with matplotlib.style.context("default"):
        figure.savefig(file, format="png", dpi=DPI, facecolor=figure.get_facecolor(), metadata=metadata)
    return file.getvalue()


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What is above and below the panels of a picture in a file of its own; empty on a page, which has it."""

    title: str = ""  # the job's name
    # lines with the theme's color for them, and weight
    head: Sequence[tuple[str, str, str]] = field(default_factory=list)
    foot: Sequence[str] = ()  # lines at the bottom

    @classmethod
    def of(cls, history: History, width: float, more: str) -> Frame:
        """Return the job's name, method and warning, and at the bottom the data's origin and `more`."""
        head = [(line, "soft", "normal") for line in textwrap.wrap(history.method, int(width * 15))]
        if text := note(history):
            head.append((capitalized(text) + ".", "warning", "bold"))
        source = history.source.rstrip(".")
        text = " ".join(filter(None, (capitalized(source) + "." * bool(source), more)))
        return cls(title=history.job, head=head, foot=textwrap.wrap(text, int((width - 0.24) * 20.5)))

    @property
    def top(self) -> float:
        """Inches above the panels."""
        return TOP + LINE * len(self.head) if self.title else UNFRAMED

    @property
    def bottom(self) -> float:
        """Inches below the panels."""
        return BOTTOM + LINE * len(self.foot)

    def write(self, figure: Figure) -> None:
        """Write it into a figure of its final size."""
        width, total = figure.get_size_inches()
        x = 0.12 / width
        title = shorten(self.title, int(width * 8))
        if title:
            figure.text(x, 1 - 0.12 / total, title, fontsize=11, fontweight="bold", va="top")
        for index, (line, color, weight) in enumerate(self.head):
            y = 1 - (0.34 + LINE * index) / total
            figure.text(x, y, line, fontsize=7.5, color=getattr(LIGHT, color), fontweight=weight, va="top")
        for index, line in enumerate(reversed(self.foot)):
            figure.text(x, (0.1 + LINE * index) / total, line, fontsize=6.5, color=LIGHT.soft, va="bottom")


@lru_cache(maxsize=4096)  # both forms of a picture have the same labels
def text_width(text: str, size: float) -> float:
    """Return the width of a text in bold letters in inches; `size` is in points."""
    font = FontProperties(family="DejaVu Sans", weight="bold")
    return TextPath((0, 0), text, size=size, prop=font).get_extents().width / 72


def shorten(name: str, length: int) -> str:
    """Shorten a name to at most `length` letters in its middle, since names often differ at their ends."""
    if len(name) <= length:
        return name
    tail = (length - 1) // 2
    return f"{name[: length - 1 - tail]}…{name[len(name) - tail :]}"


def spread(positions: Sequence[float], *, gap: float, low: float, high: float) -> np.ndarray:
    """Move labels apart by as little as possible, in order.

    Minimizes sum_i (y_i - x_i)^2 subject to y_(i+1) >= y_i + gap and low <= y_i <= high over the sorted positions x.
    With z_i = y_i - i*gap this is isotonic regression, and its bounded form is the unbounded one, clipped.

    The gap becomes smaller if the labels do not fit. The places are in the order of the positions.

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


def set_apart(axes: Axes, curves: Sequence[Sequence[Line2D]]) -> None:
    """Shift curves that coincide over a stretch, or whose only points do, up or down by a few points.

    The axes have their final height limits; the first line of a curve has all its figures.
    """
    low, high = axes.get_ylim()
    points = [_finite_points(own[0]) for own in curves]
    for group in _groups(points, CLOSE * (high - low)):
        step = LINE_STEP if any(len(points[one][0]) > 1 for one in group) else MARKER_STEP
        step = min(step, MAX_SHIFT / max(len(group) - 1, 1))
        for place, one in enumerate(group):
            shift = ScaledTranslation(0, ((len(group) - 1) / 2 - place) * step / 72, axes.figure.dpi_scale_trans)
            for artist in curves[one]:
                artist.set_transform(axes.transData + shift)


def _finite_points(line: Line2D) -> tuple[np.ndarray, np.ndarray]:
    x, y = (np.asarray(values, dtype=float) for values in line.get_data())
    return x[np.isfinite(y)], y[np.isfinite(y)]


def _groups(points: Sequence[tuple[np.ndarray, np.ndarray]], close: float) -> list[list[int]]:
    """Return the groups of two and more curves, each of which coincides with another of its group."""
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

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The convergence picture: accuracy of every site and their mean over the rounds, training loss, transport distance.

One panel of a picture: a quantity of every site, and the mean of the sites, over the rounds or what was sent.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedpeft.report.history import History
from fedpeft.report.page_parts import Picture
from fedpeft.report.palette import (
    BRIDGE,
    DARK,
    DISTINCT,
    GAP,
    LIGHT,
    SIDE_BY_SIDE,
    Theme,
    end_labels,
    label_width,
    line_style,
    set_apart,
    shorten,
    write_labels,
)
from fedpeft.report.series import Places, means, series
from fedpeft.report.wording import caption, note, plot_title

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


Head = list[tuple[str, str, str]]  # text, the theme's color for it, weight
DPI = 200
# inches
MAIN_WIDTH, SIDE_WIDTH, MIN_HEIGHT = 3.6, 2.2, 2.9
NARROW = 3.7  # a phone's width, with letters of the page's own size
TOP, BOTTOM, LEFT, RIGHT, BETWEEN = 0.62, 0.5, 0.5, 0.15, 0.5
UNFRAMED = 0.3  # above the panels of a picture without head
LINE = 0.15
SIDE_TITLES = {"loss": "Training loss", "alignment": "Transport distance (alignment)"}
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters on every machine
    "font.size": 8,
    "text.parse_math": False,  # a site may be called a$b$
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.size": 0,
}


def convergence(history: History, *, dark: bool = False, narrow: bool = False, framed: bool = True) -> Figure:
    """Draw a run.

    Panels: the sites' metric in percent, with a label beside every line; training loss; transport distance of
    the alignment. The last two stand only where the run reports them. A dotted bridge spans rounds without a figure.

    Args:
        history: the run.
        dark: for a dark page.
        narrow: one panel below the other, for the page on a phone.
        framed: with the head and the foot, which a page has itself.
    """
    if narrow:
        return under_style(lambda theme: _narrow_figure(history, theme), dark=dark)
    return under_style(lambda theme: _figure(history, theme, framed=framed), dark=dark)


def under_style(make: Callable[[Theme], Figure], *, dark: bool) -> Figure:
    """Make a figure in the report's style, independent of the user's own.

    Args:
        make: draws with a theme.
        dark: for a dark page.
    """
    theme = DARK if dark else LIGHT
    colors = {"text.color": theme.ink, "axes.labelcolor": theme.soft, "axes.edgecolor": theme.soft}
    colors |= {"xtick.color": theme.soft, "ytick.color": theme.soft, "axes.facecolor": theme.paper}
    with matplotlib.style.context(["default", STYLE, colors]):
        figure = make(theme)
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()  # ticks are made while drawing: make them while the style holds
    return figure


def png(figure: Figure, history: History) -> bytes:
    """Return a run's picture as PNG; the same history and matplotlib give the same bytes, since no date is written.

    Args:
        figure: from ``convergence`` or ``schedule_plot.schedule_figure``.
        history: the run; its caption is written into the file as its description.
    """
    return described_png(figure, caption(history))


def described_png(figure: Figure, description: str) -> bytes:
    """Return a picture as PNG, without a date, with a description in the file."""
    file = io.BytesIO()
    metadata = {"Software": None, "Description": description}
    with matplotlib.style.context("default"):
        figure.savefig(file, format="png", dpi=DPI, facecolor=figure.get_facecolor(), metadata=metadata)
    return file.getvalue()


def in_all_forms(draw: Callable[[Theme, bool], Figure], description: str, caption: str = "") -> Picture:
    """Return a picture for light and dark, wide and narrow pages.

    Args:
        draw: from a theme, and whether the page is narrow, to a figure.
        description: is written into the files.
        caption: stands below the picture.
    """

    def made(*, dark: bool, narrow: bool) -> bytes:
        return described_png(under_style(lambda theme: draw(theme, narrow), dark=dark), description)

    return Picture(
        light=made(dark=False, narrow=False),
        dark=made(dark=True, narrow=False),
        narrow=made(dark=False, narrow=True),
        narrow_dark=made(dark=True, narrow=True),
        caption=caption,
    )


def _figure(history: History, theme: Theme, *, framed: bool) -> Figure:
    labels = end_labels(history, theme)
    side = _side_panels(history)
    column = label_width(labels)
    width = LEFT + MAIN_WIDTH + column + RIGHT + (BETWEEN + SIDE_WIDTH if side else 0)
    height = max(MIN_HEIGHT, GAP * len(labels))
    frame = Frame.of(history, width, explained(history)) if framed else Frame()
    top, bottom = frame.top, BOTTOM + frame.below
    total = top + height + bottom
    figure = Figure(figsize=(width, total), dpi=DPI, facecolor=theme.paper)

    def place(left: float, low: float, wide: float, high: float) -> Axes:
        return figure.add_axes((left / width, low / total, wide / width, high / total))

    main = place(LEFT, bottom, MAIN_WIDTH, height)
    draw(main, history, "overall", plot_title(history), theme, scale=100)
    write_labels(main, labels, theme)
    axes = [main]
    each = (height - BETWEEN * (len(side) - 1)) / max(len(side), 1)
    for index, name in enumerate(side):
        low = bottom + (len(side) - 1 - index) * (each + BETWEEN)
        axes.append(place(LEFT + MAIN_WIDTH + column + BETWEEN, low, SIDE_WIDTH, each))
        draw(axes[-1], history, name, SIDE_TITLES[name], theme)
    for one in {axes[0], axes[-1]}:
        one.set_xlabel("round", labelpad=2)
    frame.write(figure, theme)
    return figure


def _narrow_figure(history: History, theme: Theme) -> Figure:
    labels, side = end_labels(history, theme), _side_panels(history)
    wide, column = NARROW - LEFT - RIGHT, label_width(labels)
    heights = [max(MAIN_WIDTH / 2, GAP * len(labels)), *[SIDE_WIDTH / 2] * len(side)]
    total = sum(heights) + len(side) * (BETWEEN + 0.1) + 0.3 + BOTTOM
    figure = Figure(figsize=(NARROW, total), dpi=DPI, facecolor=theme.paper)
    top = total - 0.3
    for index, (name, height) in enumerate(zip(("overall", *side), heights, strict=True)):
        width = wide if index else max(wide - column, wide / 3)
        axes = figure.add_axes((LEFT / NARROW, (top - height) / total, width / NARROW, height / total))
        if index:
            draw(axes, history, name, SIDE_TITLES[name], theme)
        else:
            draw(axes, history, name, plot_title(history), theme, scale=100)
            write_labels(axes, labels, theme)
        top -= height + BETWEEN + 0.1
    axes.set_xlabel("round", labelpad=2)
    return figure


def _side_panels(history: History) -> list[str]:
    return [name for name in SIDE_TITLES if any(mean.value is not None for mean in means(history, name))]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What stands above and below the panels of a picture that is a file of its own; empty on a page, which has it.

    Args:
        title: the job's name.
        head: lines with color and weight.
        foot: lines at the bottom.
    """

    title: str = ""
    head: Head = field(default_factory=list)
    foot: Sequence[str] = ()

    @classmethod
    def of(cls, history: History, width: float, more: str) -> Frame:
        """Return the job's name, method and warning, and at the bottom the data's origin and `more`."""
        source = history.source.rstrip(".")
        text = " ".join(filter(None, (source[:1].upper() + source[1:] + "." * bool(source), more)))
        return cls(title=history.job, head=head_lines(history, width), foot=wrapped_foot(text, width))

    @property
    def top(self) -> float:
        """Inches above the panels."""
        return TOP + LINE * len(self.head) if self.title else UNFRAMED

    @property
    def below(self) -> float:
        """Inches of the lines at the bottom."""
        return LINE * len(self.foot)

    def write(self, figure: Figure, theme: Theme) -> None:
        """Write it into a figure of its final size."""
        width, total = figure.get_size_inches()
        x = 0.12 / width
        title = shorten(self.title, int(width * 8))
        if title:
            figure.text(x, 1 - 0.12 / total, title, fontsize=11, fontweight="bold", va="top")
        for index, (line, color, weight) in enumerate(self.head):
            y = 1 - (0.34 + LINE * index) / total
            figure.text(x, y, line, fontsize=7.5, color=getattr(theme, color), fontweight=weight, va="top")
        for index, line in enumerate(reversed(self.foot)):
            figure.text(x, (0.1 + LINE * index) / total, line, fontsize=6.5, color=theme.soft, va="bottom")


def head_lines(history: History, width: float) -> Head:
    """Return the lines under the job's name with color and weight: the method, and a warning for procedural data."""
    lines = [(line, "soft", "normal") for line in textwrap.wrap(history.method, int(width * 15))]
    if text := note(history):
        lines.append((text[0].upper() + text[1:] + ".", "warning", "bold"))
    return lines


def wrapped_foot(text: str, width: float) -> list[str]:
    """Return the lines at the bottom of a picture of this width in inches."""
    return textwrap.wrap(text, int((width - 0.24) * 20.5))


def explained(history: History) -> str:
    """Return the meaning of dotted bridges and open circles, and that lines do not cover each other."""
    parts = []
    lines = series(history, "overall").values()
    if any(None in line and any(value is not None for value in line) for line in lines):
        parts.append("Dotted: no figure in these rounds.")
    if any(mean.value is not None and not mean.complete for mean in means(history, "overall")):
        parts.append("Open circle: mean over fewer sites.")
    if 1 < len(lines) <= DISTINCT:
        parts.append(SIDE_BY_SIDE)
    return " ".join(parts)

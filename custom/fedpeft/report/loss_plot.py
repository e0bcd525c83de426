# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The picture of the losses in every round, if a run measured them: at its start and its end, or in its course.

Within a round a line goes from the loss before the first step to that after the last one; then it jumps to the loss
of what the site got and integrated, where the next round begins. These jumps are the oscillation of FedPIA's Figure 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from fedpeft.core.metrics import ENDS
from fedpeft.report.history import History
from fedpeft.report.palette import BOTTOM, DISTINCT, LIGHT, Drawing, Frame, drawn, line_style, shorten

Figures = Mapping[str, float | None]  # by site
Losses = Mapping[str, np.ndarray]  # by site (R, P): from the start of each round to its end, NaN where unknown

TITLE = "Loss on the probe samples, at the start and the end of every round"
BY_PROBE = "Mean loss on the same training samples every round."
COURSE = "Loss of the training batches, in the course of every round"
BY_STEP = "Twenty points a round: means over its steps, or between them where it has fewer."
# inches
PANEL, WIDE, HIGH, LEFT, RIGHT, BETWEEN = 2.2, 5.6, 2.1, 0.5, 0.15, 0.2
COLUMNS = 3  # of panels, and of the legend
NAMES, ROW, ABOVE = 0.42, 0.16, 0.5  # below the panels, for each row of the legend, and above a panel
LETTERS = 32  # of a panel's or line's name


def drawings(history: History) -> Iterator[Drawing]:
    """Yield the picture of the losses, if the run measured them."""
    if losses_of(history):
        described = f"Lines through the losses at the start and the end of every round, for {', '.join(history.sites)}."
        yield Drawing("losses", "Oscillation", losses_figure, losses_explained(history), described)


def losses_of(history: History) -> dict[str, np.ndarray]:
    """Return the losses of the sites that measured some."""
    of_rounds = [[{s: getattr(r, name) for s, r in one.sites.items()} for one in history.rounds] for name in ENDS]
    return losses_by_site(*of_rounds)


def losses_by_site(*points: Sequence[Figures]) -> dict[str, np.ndarray]:
    """Return the losses of sites that have some; the first of `points` are those at the start of each round."""
    sites = dict.fromkeys(site for one in points[0] for site in one) if points else {}
    every = {site: np.array([[one.get(site) for one in of] for of in points], dtype=float).T for site in sites}
    return {site: losses for site, losses in every.items() if np.isfinite(losses).any()}


def rise(losses: Losses) -> float | None:
    """Return by how much the loss rises from the end of a round to the start of the next one, the mean over sites.

    It is the mean of the sites' means over rounds; below 0 if losses fall between rounds; None: nothing is known.
    """
    jumps = [one[1:, 0] - one[:-1, -1] for one in losses.values()]
    means = [one[np.isfinite(one)].mean() for one in jumps if np.isfinite(one).any()]
    return float(np.mean(means)) if means else None


def rise_text(losses: Losses) -> str:
    """Return the rise with its sign; empty where it is not known."""
    value = rise(losses)
    return "" if value is None else f"{value:+.3f}"


def losses_figure(history: History, *, framed: bool = True) -> Figure:
    """Draw the losses of a run that measured them."""
    return drawn(lambda: _figure({"": losses_of(history)}, history if framed else None))


def panels_figure(panels: Mapping[str, Losses], frame: Frame | None = None, *, title: str = TITLE) -> Figure:
    """Draw the losses of several methods beside each other with one axis; a panel without a name has the title."""
    return drawn(lambda: _figure(panels, None, frame, title))


def losses_explained(history: History) -> str:
    """Return on which samples the losses are measured, and how far they jump between rounds."""
    text = rise_text(losses_of(history))
    return f"{BY_PROBE} Mean change from the end of a round to the start of the next: {text}." if text else BY_PROBE


def _figure(
    panels: Mapping[str, Losses], history: History | None, frame: Frame | None = None, title: str = TITLE
) -> Figure:
    sites = list(dict.fromkeys(site for losses in panels.values() for site in losses))
    columns = min(len(panels), COLUMNS)
    rows = -(-len(panels) // columns)
    wide, named = WIDE if columns == 1 else PANEL, any(panels)
    names = (len(sites) + (len(sites) > 1)) if len(sites) <= DISTINCT else 2
    low = NAMES + ROW * -(-names // COLUMNS)
    width = LEFT + columns * wide + (columns - 1) * BETWEEN + RIGHT
    if frame is None:
        frame = Frame() if history is None else Frame.of(history, width, losses_explained(history))
    foot = frame.bottom - BOTTOM + 0.15
    total = frame.top + rows * HIGH + (rows - 1) * ABOVE + low + foot
    figure = Figure(figsize=(width, total), facecolor=LIGHT.paper)
    first: Axes | None = None
    lines: dict[str, Line2D] = {}
    for number, (name, losses) in enumerate(panels.items()):
        row, column = divmod(number, columns)
        left = (LEFT + column * (wide + BETWEEN)) / width
        up = 1 - (frame.top + HIGH + row * (HIGH + ABOVE)) / total
        axes = figure.add_axes((left, up, wide / width, HIGH / total), sharey=first)
        first = first or axes
        lines |= _panel(axes, losses, sites)
        axes.set_title(shorten(name, LETTERS) if named else title, loc="left", fontsize=8.5, fontweight="bold", pad=6)
        axes.tick_params(labelleft=column == 0)
        if number + columns >= len(panels):
            axes.set_xlabel("round", labelpad=2)
    place = (0.5, (foot - 0.05) / total)
    look: dict[str, Any] = {"ncols": COLUMNS, "frameon": False, "fontsize": 7.5, "borderaxespad": 0.0}
    shown = [shorten(name, LETTERS) for name in lines]
    figure.legend(lines.values(), shown, loc="lower center", bbox_to_anchor=place, **look)
    frame.write(figure)
    return figure


def _panel(axes: Axes, losses: Losses, sites: list[str]) -> dict[str, Line2D]:
    """Draw a line for every site and, above them, that of their mean; return them by their names in the legend."""
    lines = {}
    for site, one in losses.items():
        style = line_style(sites.index(site), len(sites))
        label = site if len(sites) <= DISTINCT else "sites"
        (lines[label],) = axes.plot(*saw_tooth(one), **{**style, "linewidth": 0.9, "alpha": 0.75})
    if len(losses) > 1:
        together = mean_of(losses)
        label = "mean" if "mean" not in sites else "mean of the sites"  # a site may have that name
        (lines[label],) = axes.plot(*saw_tooth(together), color=LIGHT.ink, linewidth=1.8, zorder=4)
    rounds = max(map(len, losses.values()), default=1)
    axes.set_xlim(-0.02 * rounds, 1.02 * rounds)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
    if all(np.nanmin(one) > 0 for one in losses.values()):  # else the fall of the first round hides all later jumps
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color=LIGHT.grid, linewidth=0.6)
    return lines


def saw_tooth(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places (RP,) and the losses (RP,) of a line through all points; round t is from t - 1 to t."""
    begins = np.arange(len(losses), dtype=float)
    return (begins[:, None] + np.linspace(0, 1, losses.shape[1])).ravel(), losses.ravel()


def mean_of(losses: Losses) -> np.ndarray:
    """Return the mean of the sites (R, P); NaN in rounds that not all of them measured."""
    return np.mean(list(losses.values()), axis=0)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The picture of what a run sent for its figures: every site's metric, and their mean, against what a site had sent."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedpeft.protocol.limits import MB
from fedpeft.report.history import History
from fedpeft.report.labels import GAP, end_labels, label_width, write_labels
from fedpeft.report.palette import Theme
from fedpeft.report.panel import draw
from fedpeft.report.plots import (
    BOTTOM,
    DPI,
    LEAST_HEIGHT,
    LEFT,
    MAIN_WIDTH,
    NARROW,
    RIGHT,
    Frame,
    explained,
    under_style,
)
from fedpeft.report.series import Places, series
from fedpeft.report.wording import plot_title

WIDTH = 1.4 * MAIN_WIDTH  # inches
COUNTED = "Adapters only, without FLARE's own messages."
LESS = "Dotted to the right: other sites sent more."


def sent_figure(history: History, *, dark: bool = False, narrow: bool = False, framed: bool = True) -> Figure:
    """Draw a run.

    Args:
        history: a run for which `was_counted`.
        dark: for a dark page.
        narrow: for the page on a phone.
        framed: with the head and the foot, which a page has itself.
    """
    return under_style(lambda theme: _figure(history, theme, narrow=narrow, framed=framed and not narrow), dark=dark)


def was_counted(history: History) -> bool:
    """Return whether everything that was sent in the run was counted, and something was."""
    results = [site for one in history.rounds for site in one.sites.values()]
    return all(site.sent is not None for site in results) and any(site.sent for site in results)


def sent_so_far(history: History) -> Places:
    """Return what every site had sent after each round in MB, and the mean over the sites that ever sent."""
    lines = series(history, "sent")
    sums = {site: np.cumsum([value or 0 for value in line]) / MB for site, line in lines.items()}
    counted = [sums[site] for site, line in lines.items() if any(value is not None for value in line)]
    return Places(sites=sums, mean=np.mean(counted, axis=0))


def sent_explained(history: History) -> str:
    """Return what the picture counts, and what its dots mean."""
    less = LESS if len({line[-1] for line in sent_so_far(history).sites.values()}) > 1 else ""
    return " ".join(filter(None, (COUNTED, less, explained(history))))


def _figure(history: History, theme: Theme, *, narrow: bool, framed: bool) -> Figure:
    where = sent_so_far(history)
    labels = end_labels(history, theme, where)
    column = label_width(labels)
    width = NARROW if narrow else LEFT + WIDTH + column + RIGHT
    wide = max(NARROW - LEFT - RIGHT - column, NARROW / 3) if narrow else WIDTH
    frame = Frame.of(history, width, sent_explained(history)) if framed else Frame()
    height = max(LEAST_HEIGHT * (0.7 if narrow else 1), GAP * len(labels))
    bottom = BOTTOM + frame.below
    total = frame.top + height + bottom
    figure = Figure(figsize=(width, total), dpi=DPI, facecolor=theme.paper)
    axes = figure.add_axes((LEFT / width, bottom / total, wide / width, height / total))
    draw(axes, history, "overall", plot_title(history), theme, scale=100, places=where)
    axes.set_xlim(0, 1.03 * max(line[-1] for line in where.sites.values()))
    axes.set_xlabel("MB that a site had sent", labelpad=2)
    write_labels(axes, labels, theme)
    frame.write(figure, theme)
    return figure

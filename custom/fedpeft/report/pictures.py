# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""All pictures of a run: light and dark for its page, and as files of their own.

The picture of what a run sent for its figures: every site's metric, and their mean, against what a site had sent.

The picture of the fronts: each solver's front for the last scheduled round, with the exact Pareto front.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedpeft.protocol.fields import MB
from fedpeft.report.history import History, Schedule
from fedpeft.report.page_parts import Picture
from fedpeft.report.palette import COLORS, GAP, Theme, end_labels, label_width, write_labels
from fedpeft.report.plots import (
    BOTTOM,
    DPI,
    LEFT,
    MAIN_WIDTH,
    MIN_HEIGHT,
    NARROW,
    RIGHT,
    Frame,
    draw,
    explained,
    under_style,
)
from fedpeft.report.series import Places, series
from fedpeft.report.wording import plot_title
from fedpeft.scheduling import Front, exact_front, hypervolume, nadir, names_with_front, schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    return under_style(
        lambda theme: _sent_figure(history, theme, narrow=narrow, framed=framed and not narrow), dark=dark
    )


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


def _sent_figure(history: History, theme: Theme, *, narrow: bool, framed: bool) -> Figure:
    where = sent_so_far(history)
    labels = end_labels(history, theme, where)
    column = label_width(labels)
    width = NARROW if narrow else LEFT + WIDTH + column + RIGHT
    wide = max(NARROW - LEFT - RIGHT - column, NARROW / 3) if narrow else WIDTH
    frame = Frame.of(history, width, sent_explained(history)) if framed else Frame()
    height = max(MIN_HEIGHT * (0.7 if narrow else 1), GAP * len(labels))
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


EXACT = "exact"
MAX_CELLS = 60  # sites x layers up to which the whole exact front takes less than a second
ACROSS = 3
WIDE, HIGH, FRONT_LEFT, FRONT_RIGHT, FRONT_BETWEEN, BELOW = 1.95, 1.55, 0.5, 0.2, 0.42, 0.62  # inches


def fronts_figure(history: History, *, dark: bool = False, framed: bool = True) -> Figure:
    """Draw the fronts of the last scheduled round, one panel for each heuristic: importance against variance.

    Args:
        history: a run with at least one scheduled round, whose layers were scored.
        dark: for a dark page.
        framed: with the head and the foot, which a page has itself.
    """
    return under_style(lambda theme: _front_figure(history, theme, framed=framed), dark=dark)


def fronts_of(plan: Schedule, *, seed: int = 0) -> dict[str, Front]:
    """Return the front of every solver for a round's scores and budgets; the exact one in full if that is quick."""
    scores = np.array([plan.scores[site] for site in plan.scores])  # (N, L)
    budgets = np.array([len(plan.layers[site]) for site in plan.scores])
    fronts = {name: schedule(scores, budgets, solver=name, seed=seed) for name in names_with_front() if name != EXACT}
    return fronts | {EXACT: exact_front(scores, budgets, full=scores.size <= MAX_CELLS)}


def _front_figure(history: History, theme: Theme, *, framed: bool) -> Figure:
    last = history.scheduled[-1]
    fronts = fronts_of(last.schedule)
    exact = fronts.pop(EXACT)
    down = -(-len(fronts) // ACROSS)
    width = FRONT_LEFT + ACROSS * WIDE + (ACROSS - 1) * FRONT_BETWEEN + FRONT_RIGHT
    frame = Frame.of(history, width, fronts_explained(history)) if framed else Frame()
    top, bottom = frame.top, BOTTOM + frame.below
    total = top + down * HIGH + (down - 1) * BELOW + bottom
    figure = Figure(figsize=(width, total), dpi=DPI, facecolor=theme.paper)
    limits = _limits([exact, *fronts.values()], last.schedule)
    for index, (name, front) in enumerate(fronts.items()):
        row, column = divmod(index, ACROSS)
        x, y = FRONT_LEFT + column * (WIDE + FRONT_BETWEEN), total - top - HIGH - row * (HIGH + BELOW)
        axes = figure.add_axes((x / width, y / total, WIDE / width, HIGH / total))
        _panel(axes, name, front, exact, last.schedule, theme)
        axes.set(xlim=limits[0], ylim=limits[1])
        axes.set_xlabel("importance" if index + ACROSS >= len(fronts) else "", labelpad=2)
        axes.set_ylabel("variance" if column == 0 else "", labelpad=2)
    axes.legend(loc="center left", bbox_to_anchor=(1 + FRONT_BETWEEN / WIDE, 0.5), frameon=False, fontsize=7.5)
    frame.write(figure, theme)
    return figure


def _panel(axes: Axes, name: str, front: Front, exact: Front, plan: Schedule, theme: Theme) -> None:
    share = _share(front, exact)
    axes.set_title(f"{name}: {share}", loc="left", fontsize=8, fontweight="bold", pad=5)
    axes.step(exact.importance, exact.variance, where="pre", color=theme.soft, linewidth=0.8, zorder=2)
    hollow: dict[str, Any] = {
        "markerfacecolor": theme.paper,
        "markeredgecolor": theme.soft,
        "markersize": 4.2,
        "markeredgewidth": 0.8,
    }
    axes.plot(exact.importance, exact.variance, "o", label="exact front", zorder=3, **hollow)
    look: dict[str, Any] = {"color": COLORS[0], "markersize": 2.6, "markeredgewidth": 0, "zorder": 4}
    axes.plot(front.importance, front.variance, "o", label="found by the solver", **look)
    if plan.importance is not None and plan.variance is not None:
        look = {"color": COLORS[1], "markersize": 5.5, "markeredgewidth": 1.4, "zorder": 5}
        axes.plot(plan.importance, plan.variance, "x", label="assigned in the run", **look)
    axes.grid(color=theme.grid, linewidth=0.6)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))


def _share(front: Front, exact: Front) -> str:
    """Return the front's share of the exact hypervolume, from the exact front's own worst values."""
    whole = hypervolume(exact, nadir(exact))
    if whole <= 0:
        return "one point" if len(front) == 1 else f"{len(front)} points"
    return f"{100 * hypervolume(front, nadir(exact)) / whole:.1f} % of exact"


def _limits(fronts: list[Front], plan: Schedule) -> list[tuple[float, float]]:
    """Common limits of all panels, with a margin."""
    limits = []
    for name in ("importance", "variance"):
        values = np.concatenate([getattr(front, name) for front in fronts])
        assigned = getattr(plan, name)
        low, high = min(values.min(), *[assigned] * 2) if assigned is not None else values.min(), values.max()
        high = max(high, assigned) if assigned is not None else high
        pad = 0.06 * (high - low) or 0.5
        limits.append((low - pad, high + pad))
    return limits


def fronts_explained(history: History) -> str:
    """Return what the panels show."""
    last = history.scheduled[-1]
    scored = last.schedule.scores
    whole = len(scored) * len(last.schedule.numbers) <= MAX_CELLS
    parts = [
        f"Scores of round {last.round}, {len(scored)} sites. Right and low is better.",
        "Percent: hypervolume from the exact front's own worst values.",
        "" if whole else "The exact front is its convex hull here, so that a solver may exceed 100 %.",
    ]
    return " ".join(filter(None, parts))


FORMS = {
    "light": {"dark": False},
    "dark": {"dark": True},
    "narrow": {"dark": False, "narrow": True},
    "narrow_dark": {"dark": True, "narrow": True},
}


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """What the page shows: `sent` only if what was sent was counted, `schedule` only if any round has a schedule,
    `fronts` only if its layers were scored."""

    curves: Picture
    sent: Picture | None = None
    schedule: Picture | None = None
    fronts: Picture | None = None


def draw_pictures(history: History) -> Pictures:
    """Draw all pictures of a run for its page."""
    from fedpeft.report.plots import png

    drawn = {}
    for name, (figure_of, caption, has_narrow) in _drawings(history).items():
        forms = {
            form: png(figure_of(history, **look, framed=False), history)
            for form, look in FORMS.items()
            if has_narrow or "narrow" not in look
        }
        drawn[name] = Picture(**forms, caption=caption)
    return Pictures(**drawn)


def picture_files(history: History) -> dict[str, bytes]:
    """Return every picture of a run as a file of its own, with the job's name and the warning, by the page's names."""
    from fedpeft.report.plots import png

    return {name: png(figure_of(history), history) for name, (figure_of, _, _) in _drawings(history).items()}


def _drawings(history: History) -> dict[str, tuple[Callable[..., Figure], str, bool]]:
    """Return for each picture of this run what draws it, its caption, and whether it has a form for narrow pages."""

    from fedpeft.report.plots import convergence
    from fedpeft.report.schedule_plot import schedule_explained, schedule_figure

    drawings: dict[str, tuple[Callable[..., Figure], str, bool]] = {"curves": (convergence, explained(history), True)}
    if was_counted(history):
        drawings["sent"] = sent_figure, sent_explained(history), True
    if history.scheduled:
        drawings["schedule"] = schedule_figure, schedule_explained(history), False
        if history.scheduled[-1].schedule.scores:
            drawings["fronts"] = fronts_figure, fronts_explained(history), False
    return drawings

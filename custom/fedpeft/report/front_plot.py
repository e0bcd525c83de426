# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The picture of the fronts: each solver's front for the last scheduled round, with the exact Pareto front."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedpeft.report.history import History, Schedule
from fedpeft.report.palette import COLORS, Theme
from fedpeft.report.plots import BOTTOM, DPI, Frame, under_style
from fedpeft.scheduling import Front, exact_front, hypervolume, nadir, names_with_front, schedule

EXACT = "exact"
MOST_CELLS = 60  # sites x layers up to which the whole exact front takes less than a second
ACROSS = 3
WIDE, HIGH, LEFT, RIGHT, BETWEEN, BELOW = 1.95, 1.55, 0.5, 0.2, 0.42, 0.62  # inches


def fronts_figure(history: History, *, dark: bool = False, framed: bool = True) -> Figure:
    """Draw the fronts of the last scheduled round, one panel for each heuristic: importance against variance.

    Args:
        history: a run with at least one scheduled round, whose layers were scored.
        dark: for a dark page.
        framed: with the head and the foot, which a page has itself.
    """
    return under_style(lambda theme: _figure(history, theme, framed=framed), dark=dark)


def fronts_of(plan: Schedule, *, seed: int = 0) -> dict[str, Front]:
    """Return the front of every solver for a round's scores and budgets; the exact one in full if that is quick."""
    scores = np.array([plan.scores[site] for site in plan.scores])  # (N, L)
    budgets = np.array([len(plan.layers[site]) for site in plan.scores])
    fronts = {name: schedule(scores, budgets, solver=name, seed=seed) for name in names_with_front() if name != EXACT}
    return fronts | {EXACT: exact_front(scores, budgets, full=scores.size <= MOST_CELLS)}


def _figure(history: History, theme: Theme, *, framed: bool) -> Figure:
    last = history.scheduled[-1]
    fronts = fronts_of(last.schedule)
    exact = fronts.pop(EXACT)
    down = -(-len(fronts) // ACROSS)
    width = LEFT + ACROSS * WIDE + (ACROSS - 1) * BETWEEN + RIGHT
    frame = Frame.of(history, width, fronts_explained(history)) if framed else Frame()
    top, bottom = frame.top, BOTTOM + frame.below
    total = top + down * HIGH + (down - 1) * BELOW + bottom
    figure = Figure(figsize=(width, total), dpi=DPI, facecolor=theme.paper)
    limits = _limits([exact, *fronts.values()], last.schedule)
    for index, (name, front) in enumerate(fronts.items()):
        row, column = divmod(index, ACROSS)
        x, y = LEFT + column * (WIDE + BETWEEN), total - top - HIGH - row * (HIGH + BELOW)
        axes = figure.add_axes((x / width, y / total, WIDE / width, HIGH / total))
        _panel(axes, name, front, exact, last.schedule, theme)
        axes.set(xlim=limits[0], ylim=limits[1])
        axes.set_xlabel("importance" if index + ACROSS >= len(fronts) else "", labelpad=2)
        axes.set_ylabel("variance" if column == 0 else "", labelpad=2)
    axes.legend(loc="center left", bbox_to_anchor=(1 + BETWEEN / WIDE, 0.5), frameon=False, fontsize=7.5)
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
    whole = len(scored) * len(last.schedule.numbers) <= MOST_CELLS
    parts = [
        f"Scores of round {last.round}, {len(scored)} sites. Right and low is better.",
        "Percent: hypervolume from the exact front's own worst values.",
        "" if whole else "The exact front is its convex hull here, so that a solver may exceed 100 %.",
    ]
    return " ".join(filter(None, parts))

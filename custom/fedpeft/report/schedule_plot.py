# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The pictures of a schedule: its layers, and its fronts.

The first has layer scores and assigned layers of every site, and how often each layer was assigned. The second has each
solver's front for the last scheduled round, with the exact Pareto front.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from fedpeft.core.text import counted
from fedpeft.report.history import History, RoundRecord, Schedule
from fedpeft.report.palette import COLORS, DPI, LIGHT, Drawing, Frame, drawn, shorten, text_width
from fedpeft.scheduling import Front, exact_front, hypervolume, nadir, names_with_front, schedule

MAX_PANELS = 6
MAX_VECTOR = 1500  # cells of a heat map whose lines and dots are elements of the SVG; those of more are a raster image
DOT = "#fefefe", "#1b1b1b"  # on the map's colors, which are the same on dark pages: neither paper nor ink
MAP = "viridis"  # even steps of lightness, which color-blind readers and gray prints keep
# inches
CELL, GRID_WIDTH, TALLEST = 0.2, 7.2, 3.0
GUTTER, BETWEEN, USE_HEIGHT, SIDE = 0.12, 0.52, 1.25, 0.85
MIN_WIDTH, MIN_SCALE, MAX_SCALE = 5.0, 0.42, 1.6
NAME_SIZE, TICK_SIZE = 7, 6.5  # points
MAX_LENGTH = 22  # letters of a site's name
EXACT = "exact"
MAX_CELLS = 60  # sites x layers up to which the whole exact front takes less than a second
ACROSS = 3
WIDE, HIGH, FRONT_LEFT, FRONT_RIGHT, FRONT_BETWEEN, BELOW = 1.95, 1.55, 0.5, 0.2, 0.42, 0.62  # inches


def drawings(history: History) -> Iterator[Drawing]:
    """Yield the picture of a run's schedule, and that of its fronts if layers were scored."""
    if not history.scheduled:
        return
    described = (
        "Heat maps of every site's layer scores with the layers chosen for it marked, and how often each layer was "
        f"chosen over {counted(len(history.scheduled), 'scheduled round')}; a table below says how many layers."
    )
    yield Drawing("schedule", "Layer schedule", schedule_figure, schedule_explained(history), described)
    if history.scheduled[-1].schedule.scores:
        described = (
            f"The Pareto fronts that the solvers find for the scores of round {history.scheduled[-1].round}, each "
            "beside the exact front, and the assignment that was chosen."
        )
        section = "What the schedule was chosen from"
        yield Drawing("fronts", section, fronts_figure, fronts_explained(history), described)


def schedule_figure(history: History, *, framed: bool = True) -> Figure:
    """Draw the schedule of a run with at least one scheduled round.

    A heat map, site by layer, of the scores in up to six evenly spaced rounds, first and last included, all on one
    color scale; a dot marks every assigned layer. Below, over all rounds: how often each layer was assigned, stacked by
    site if there are enough colors.
    """
    return drawn(lambda: _figure(history, framed=framed))


def shown_rounds(history: History) -> list[RoundRecord]:
    """Return at most six scheduled rounds, evenly spaced, the first and the last included."""
    rounds = history.scheduled
    places = np.linspace(0, len(rounds) - 1, min(MAX_PANELS, len(rounds))).round().astype(int)
    return [rounds[place] for place in places]


def layer_use(history: History) -> dict[str, np.ndarray]:
    """Return, by site, in how many rounds it was assigned each layer, (L,)."""
    plans = [one.schedule for one in history.scheduled]
    use = {site: np.zeros(len(plans[0].numbers), int) for site in history.sites if any(site in p.layers for p in plans)}
    for plan in plans:
        for site, layers in plan.layers.items():
            use[site] += np.isin(plan.numbers, layers)
    return use


def _figure(history: History, *, framed: bool) -> Figure:
    shown, use = shown_rounds(history), layer_use(history)
    sites, layers = list(use), len(shown[0].schedule.numbers)
    names = [shorten(site, MAX_LENGTH) for site in sites]
    across = min(len(shown), 3 if layers <= 16 else 2 if layers <= 40 else 1)
    cell_width = min(CELL, (GRID_WIDTH - GUTTER * (across - 1)) / across / layers)
    wide, high = layers * cell_width, min(CELL * len(sites), max(TALLEST, 0.06 * len(sites)))
    down = -(-len(shown) // across)
    label_width = max(text_width(name, NAME_SIZE) for name in names)
    left, right = 0.3 + label_width, 0.25 + max(SIDE, label_width + 0.25)
    grid = max(across * wide + (across - 1) * GUTTER, 2.6)
    width = max(left + grid + right, MIN_WIDTH)
    frame = Frame.of(history, width, schedule_explained(history)) if framed else Frame()
    top, bottom = frame.top, frame.bottom
    maps = down * high + (down - 1) * BETWEEN
    total = top + maps + BETWEEN + USE_HEIGHT + bottom
    figure = Figure(figsize=(width, total), dpi=DPI, facecolor=LIGHT.paper)

    def place(x: float, y: float, w: float, h: float) -> Axes:
        return figure.add_axes((x / width, y / total, w / width, h / total))

    values = np.array([score for one in shown for row in one.schedule.scores.values() for score in row])
    norm = Normalize(min(0.0, values.min()), values.max() or 1.0) if len(values) else Normalize()
    base = total - top - maps
    for index, one in enumerate(shown):
        row, column = divmod(index, across)
        axes = place(left + column * (wide + GUTTER), base + (down - 1 - row) * (high + BETWEEN), wide, high)
        image = _heat_map(axes, one, sites, norm, dot=72 * min(cell_width, high / len(sites)))
        _label_sites(axes, names if column == 0 else [], 72 * high / len(sites))
    tall = min(max(maps, MIN_SCALE), MAX_SCALE)
    if len(values):
        _color_scale(place(left + across * (wide + GUTTER) + 0.08, base + maps - tall, 0.11, tall), image)
    _layer_use_bars(place(left, bottom, grid, USE_HEIGHT), use, names, history)
    frame.write(figure)
    return figure


def _heat_map(axes: Axes, one: RoundRecord, sites: list[str], norm: Normalize, *, dot: float) -> AxesImage:
    """Draw one round: scores as colors, assigned layers as dots; `dot` is the smaller side of a cell in points."""
    plan = one.schedule
    table = np.array([plan.scores.get(site, (np.nan,) * len(plan.numbers)) for site in sites])
    axes.set_facecolor(LIGHT.grid)  # where there is no score
    image = axes.imshow(table, cmap=MAP, norm=norm, aspect="auto", interpolation="nearest")
    dense = table.size > MAX_VECTOR
    if not dense:  # cells of less than a letter's height have no lines between them
        axes.set_xticks(np.arange(1, len(plan.numbers)) - 0.5, minor=True)
        axes.set_yticks(np.arange(1, len(sites)) - 0.5, minor=True)
        axes.grid(which="minor", color=LIGHT.paper, linewidth=0.07 * dot)
        axes.set_axisbelow(False)
    y, x = np.nonzero([np.isin(plan.numbers, plan.layers.get(site, ())) for site in sites])
    look: dict[str, Any] = {"facecolor": DOT[0], "edgecolor": DOT[1], "linewidth": 0.05 * dot, "rasterized": dense}
    look |= {"zorder": 5}
    axes.scatter(x, y, s=(0.42 * dot) ** 2, label="chosen", **look)
    axes.spines[:].set_visible(False)
    axes.tick_params(which="both", length=0, labelsize=TICK_SIZE, pad=2)
    _label_layers(axes, plan.numbers, axes.bbox.width / axes.figure.dpi)
    axes.set_title(f"Round {one.round}", loc="left", fontsize=8, fontweight="bold", pad=4)
    return image


def _label_layers(axes: Axes, numbers: tuple[int, ...], width: float) -> None:
    """Write layer numbers under the columns, every n-th if they would touch; `width` of the axes in inches."""
    count = len(numbers)
    step = next(step for step in (1, 2, 4, 8, 16, 32, count) if width * step / count >= 0.17 or step == count)
    axes.set_xticks(range(0, count, step), [str(number) for number in numbers[::step]])


def _label_sites(axes: Axes, names: list[str], height: float) -> None:
    """Write names beside the rows; only every n-th if a row is lower than a letter."""
    step = max(1, round(NAME_SIZE * 1.2 / height + 0.49)) if height < NAME_SIZE else 1
    axes.set_yticks(range(0, len(names), step), names[::step], fontsize=NAME_SIZE)


def _color_scale(axes: Axes, image: AxesImage) -> None:
    bar = axes.figure.colorbar(image, cax=axes)
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(nbins=2 if axes.bbox.height < axes.figure.dpi else 4, steps=[1, 2, 2.5, 5, 10])
    axes.tick_params(length=2, labelsize=TICK_SIZE, pad=2)
    axes.set_title("score", loc="left", fontsize=7.5, pad=5)


def _layer_use_bars(axes: Axes, use: dict[str, np.ndarray], names: list[str], history: History) -> None:
    """Draw how often each layer was assigned over all rounds and sites, stacked by site if there are enough colors."""
    total = np.sum(list(use.values()), axis=0)
    layers = np.arange(len(total))
    if len(use) <= len(COLORS):
        low = np.zeros(len(total))
        for counts, color in zip(use.values(), COLORS, strict=False):
            edge: dict[str, Any] = {"color": color, "edgecolor": LIGHT.paper, "linewidth": 0.5}
            axes.bar(layers, counts, bottom=low, width=0.8, **edge)
            low = low + counts
    else:
        axes.bar(layers, total, width=0.8, color=COLORS[0])
    even = axes.axhline(total.mean(), color=LIGHT.ink, linewidth=0.9, linestyle=(0, (4, 2)))
    handles: list[Any] = [*axes.containers[::-1], even] if len(use) <= len(COLORS) else [even]
    labels = [*names[::-1], "even use"] if len(use) <= len(COLORS) else ["even use"]
    look: dict[str, Any] = {
        "fontsize": NAME_SIZE,
        "frameon": False,
        "borderaxespad": 0,
        "handlelength": 1.2,
        "labelspacing": 0.35,
    }
    legend = axes.legend(handles, ["site"] * len(handles), loc="upper left", bbox_to_anchor=(1.02, 1), **look)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(label)  # legend() itself leaves out names that begin with _
    axes.set_xlim(-0.5, len(total) - 0.5)
    axes.set_ylim(0, 1.08 * max(total.max(), 1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))
    axes.grid(axis="y", color=LIGHT.grid, linewidth=0.6)
    axes.tick_params(labelsize=TICK_SIZE)
    axes.tick_params(axis="x", length=0, pad=3)
    _label_layers(axes, history.scheduled[0].schedule.numbers, axes.bbox.width / axes.figure.dpi)
    title = f"Layer use: times chosen in {counted(len(history.scheduled), 'scheduled round')}"
    axes.set_title(title, loc="left", fontsize=8, fontweight="bold", pad=5)
    axes.set_xlabel("layer", labelpad=2, fontsize=7.5)


def schedule_explained(history: History) -> str:
    """Return the meaning of colors and marks."""
    shown, marked = shown_rounds(history), len(layer_use(history))
    parts = ["Dot: layer chosen for the site in this round. Even use: all layers chosen equally often."]
    if not any(one.schedule.scores for one in shown):
        parts.append("No colors: layers are drawn, the same for all sites, and not scored.")
    elif any(len(one.schedule.scores) < marked for one in shown):
        parts.append("Row without colors: site not scheduled in this round.")
    if any(one.schedule.undecided for one in shown):
        parts.append("Row of one color: the site scored all layers the same, so that its score chose none.")
    return " ".join(parts)


def fronts_figure(history: History, *, framed: bool = True) -> Figure:
    """Draw the fronts of the last scheduled round, importance against variance; each solver has a panel."""
    return drawn(lambda: _front_figure(history, framed=framed))


def fronts_of(plan: Schedule, *, seed: int = 0) -> dict[str, Front]:
    """Return the front of every solver for a round's scores and budgets; the exact one in full if that is quick."""
    scores = np.array([plan.scores[site] for site in plan.scores])  # (N, L)
    budgets = np.array([len(plan.layers[site]) for site in plan.scores])
    fronts = {name: schedule(scores, budgets, solver=name, seed=seed) for name in names_with_front() if name != EXACT}
    return fronts | {EXACT: exact_front(scores, budgets, full=scores.size <= MAX_CELLS)}


def _front_figure(history: History, *, framed: bool) -> Figure:
    last = history.scheduled[-1]
    fronts = fronts_of(last.schedule)
    exact = fronts.pop(EXACT)
    down = -(-len(fronts) // ACROSS)
    width = FRONT_LEFT + ACROSS * WIDE + (ACROSS - 1) * FRONT_BETWEEN + FRONT_RIGHT
    frame = Frame.of(history, width, fronts_explained(history)) if framed else Frame()
    top, bottom = frame.top, frame.bottom
    total = top + down * HIGH + (down - 1) * BELOW + bottom
    figure = Figure(figsize=(width, total), dpi=DPI, facecolor=LIGHT.paper)
    limits = _limits([exact, *fronts.values()], last.schedule)
    for index, (name, front) in enumerate(fronts.items()):
        row, column = divmod(index, ACROSS)
        x, y = FRONT_LEFT + column * (WIDE + FRONT_BETWEEN), total - top - HIGH - row * (HIGH + BELOW)
        axes = figure.add_axes((x / width, y / total, WIDE / width, HIGH / total))
        _panel(axes, name, front, exact, last.schedule)
        axes.set(xlim=limits[0], ylim=limits[1])
        axes.set_xlabel("importance" if index + ACROSS >= len(fronts) else "", labelpad=2)
        axes.set_ylabel("variance" if column == 0 else "", labelpad=2)
    axes.legend(loc="center left", bbox_to_anchor=(1 + FRONT_BETWEEN / WIDE, 0.5), frameon=False, fontsize=7.5)
    frame.write(figure)
    return figure


def _panel(axes: Axes, name: str, front: Front, exact: Front, plan: Schedule) -> None:
    share = _hypervolume_share(front, exact)
    axes.set_title(f"{name}: {share}", loc="left", fontsize=8, fontweight="bold", pad=5)
    axes.step(exact.importance, exact.variance, where="pre", color=LIGHT.soft, linewidth=0.8, zorder=2)
    hollow: dict[str, Any] = {"mfc": LIGHT.paper, "mec": LIGHT.soft, "ms": 4.2, "mew": 0.8}
    axes.plot(exact.importance, exact.variance, "o", label="exact front", zorder=3, **hollow)
    look: dict[str, Any] = {"color": COLORS[0], "markersize": 2.6, "markeredgewidth": 0, "zorder": 4}
    axes.plot(front.importance, front.variance, "o", label="found by the solver", **look)
    if plan.importance is not None and plan.variance is not None:
        look = {"color": COLORS[1], "markersize": 5.5, "markeredgewidth": 1.4, "zorder": 5}
        axes.plot(plan.importance, plan.variance, "x", label="assigned in the run", **look)
    axes.grid(color=LIGHT.grid, linewidth=0.6)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))


def _hypervolume_share(front: Front, exact: Front) -> str:
    """Return the front's share of the exact hypervolume, from the exact front's own worst values."""
    whole = hypervolume(exact, nadir(exact))
    if whole <= 0:
        return "one point" if len(front) == 1 else f"{len(front)} points"
    return f"{100 * hypervolume(front, nadir(exact)) / whole:.1f} % of exact"


def _limits(fronts: list[Front], plan: Schedule) -> list[tuple[float, float]]:
    """Return the common limits of all panels, with a margin."""
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
    """Return the explanation of the panels."""
    last = history.scheduled[-1]
    scored = last.schedule.scores
    whole = len(scored) * len(last.schedule.numbers) <= MAX_CELLS
    parts = [
        f"Scores of round {last.round}, {len(scored)} sites. Right and low is better.",
        "Percent: hypervolume from the exact front's own worst values.",
        "" if whole else "The exact front is its convex hull here, so that a solver may exceed 100 %.",
    ]
    return " ".join(filter(None, parts))

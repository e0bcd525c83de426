# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The figure of each method against the values of one setting: table, picture and page of a sweep."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from fedpeft.compare.experiment import Run
from fedpeft.compare.grid import SITES, Axis, points, shown
from fedpeft.compare.outcome import Outcome, caution_of, metrics_of
from fedpeft.compare.page import COLUMNS, HEIGHT, LETTERS, STYLE, WIDTH, seeds_of
from fedpeft.compare.page import title as title_of_runs
from fedpeft.core.metrics import TITLES, title_of
from fedpeft.report.page_parts import Picture, figure, laid_out, page_of, section
from fedpeft.report.palette import (
    DISTINCT,
    LIGHT,
    SIDE_BY_SIDE,
    drawn,
    line_style,
    point_style,
    set_apart,
    shorten,
    svg,
)
from fedpeft.report.tables import Table
from fedpeft.report.wording import DASH, FEWER, FEWER_SITES

LOG_RATIO = 20  # ratio of the largest to the smallest value above which the axis is logarithmic
AXIS_LETTERS = 80  # letters below the axis
FEWER_SEEDS = "†"
MARGIN = 0.04  # room beside the outer values, as a share of the axis


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Runs of one task: by method, for each value of a setting those of all seeds."""

    axis: Axis
    # by method, as many lists as there are values; one is empty where no run ended
    runs: Mapping[str, Sequence[Sequence[Outcome]]]
    last: int = 1  # rounds whose mean is a run's figure, at most those of the longest run

    def __post_init__(self) -> None:
        """Count no rounds that no run has."""
        longest = max((len(run.figures) for run in self.outcomes), default=1)
        object.__setattr__(self, "last", min(self.last, longest))

    @property
    def outcomes(self) -> list[Outcome]:
        """All runs."""
        return [run for of_values in self.runs.values() for runs in of_values for run in runs]

    @property
    def title(self) -> str:
        """Its title."""
        return f"{self.outcomes[0].task}: {title_of(metrics_of(self.outcomes))} against {self.axis.setting}"

    def missing_sites(self, method: str, metric: str) -> list[set[tuple[int, int, str]]]:
        """Return for each value the sites of a metric without a figure, with the seed and the round, 0 for the last."""
        return [
            {
                (run.seed, *entry)
                for run in runs
                for entry in run.missing(last=self.last, metric=metric, beside=self.at(value))
            }
            for value, runs in enumerate(self.runs[method])
        ]

    def at(self, value: int) -> list[Outcome]:
        """Return the runs of all methods at a value, by its number."""
        return [run for of_values in self.runs.values() for run in of_values[value]]

    def same_seeds(self, value: int) -> bool:
        """Return whether all methods have runs of the same seeds at a value, by its number."""
        return len({frozenset(run.seed for run in of_values[value]) for of_values in self.runs.values()}) == 1

    def figures(self, method: str, metric: str) -> list[list[float]]:
        """Return for each value the figures of all seeds, in percent."""
        found = ([run.figure(metric, last=self.last) for run in runs] for runs in self.runs[method])
        return [[value for value in values if math.isfinite(value)] for values in found]


def sweep_of(axis: Axis, plan: Sequence[Run], outcomes: Sequence[Outcome], *, last: int = 1) -> Sweep:
    """Return the runs of a plan that ended, by method and value."""
    places = list(points([axis]))
    values = {run.key: places.index(run.point) for run in plan}
    runs: dict[str, list[list[Outcome]]] = {run.method: [[] for _ in axis.values] for run in plan}
    for run in outcomes:
        runs[run.method][values[run.method, run.seed, run.settings]].append(run)
    return Sweep(axis=axis, runs=runs, last=last)


def table(sweep: Sweep) -> Table:
    """Return a row for each method and metric, and a column for each value."""
    metrics = metrics_of(sweep.outcomes)
    names = [f"{sweep.axis.setting}={shown(value)}" for value in sweep.axis.values]
    keys = [(method, metric) for metric in metrics for method in sweep.runs]
    of_keys = [sweep.figures(method, metric) for method, metric in keys]
    with_metric = len(metrics) > 1
    most = max((len(figures) for of_values in of_keys for figures in of_values), default=0)
    several = most > 1
    away = {key: sweep.missing_sites(*key) for key in keys}
    rows = tuple(
        (
            method,
            *[TITLES[metric]] * with_metric,
            *(_cell(one, most, whole=not lacking) for one, lacking in zip(figures, away[method, metric], strict=True)),
        )
        for (method, metric), figures in zip(keys, of_keys, strict=True)
    )
    columns: list[tuple[str, tuple[str | float | None, ...]]] = [("method", tuple(method for method, _ in keys))]
    if with_metric:
        columns.append(("metric", tuple(TITLES[metric] for _, metric in keys)))
    for number, name in enumerate(names):
        seeds = [figures[number] for figures in of_keys]
        columns.append((f"{name} (%)", tuple(round(statistics.fmean(one), 4) if one else None for one in seeds)))
        if several:
            spread = tuple(round(statistics.stdev(one), 4) if len(one) > 1 else None for one in seeds)
            columns.append((f"sd {name} (%)", spread))
            if any(len(one) < most for one in seeds):
                columns.append((f"seeds {name}", tuple(map(len, seeds))))
    return Table(
        title=sweep.title,
        columns=(f"method, % by {sweep.axis.setting}", *["metric"] * with_metric, *map(shown, sweep.axis.values)),
        rows=rows,
        averages=0,
        best=frozenset(_best(sweep, keys, of_keys, away, first=1 + with_metric)),
        notes=tuple(
            _notes(
                sweep,
                several=several,
                few=any(0 < len(one) < most for figures in of_keys for one in figures),
                whole=not any(any(one) for one in away.values()),
            )
        ),
        values=tuple(columns),
    )


def _cell(figures: Sequence[float], most: int, *, whole: bool) -> str:
    if not figures:
        return DASH
    spread = f" ± {statistics.stdev(figures):.1f}" if len(figures) > 1 else ""
    return f"{statistics.fmean(figures):.1f}{spread}{FEWER * (not whole)}{FEWER_SEEDS * (len(figures) < most)}"


def _best(
    sweep: Sweep,
    keys: Sequence[tuple[str, str]],
    of_keys: Sequence[Sequence[Sequence[float]]],
    away: Mapping[tuple[str, str], Sequence[set[tuple[int, int, str]]]],
    *,
    first: int,
) -> list[tuple[int, int]]:
    """Return the places of the highest figure of each metric and value.

    There is none if methods share it, or have figures of other sites, rounds or seeds.
    """
    found = []
    for metric in dict.fromkeys(metric for _, metric in keys):
        rows = [number for number, (_, one) in enumerate(keys) if one == metric]
        for column in range(len(of_keys[0])):
            means = [round(statistics.fmean(f), 1) if (f := of_keys[row][column]) else -math.inf for row in rows]
            same = len({frozenset(away[keys[row]][column]) for row in rows}) == 1
            alike = same and sweep.same_seeds(column)
            if alike and len(rows) > 1 and means.count(max(means)) == 1:
                found.append((rows[means.index(max(means))], first + column))
    return found


def _notes(sweep: Sweep, *, several: bool, few: bool, whole: bool) -> list[str]:
    outcomes = sweep.outcomes
    notes = [f"{words}."] if (words := caution_of(outcomes)) else []
    notes += ["Mean of the sites; mean and standard deviation of the seeds."] if several else ["Mean of the sites."]
    if few:
        notes.append(f"{FEWER_SEEDS} of fewer seeds than other figures: some of its runs did not end.")
    if sweep.last > 1:
        notes.append(f"A run's figure is the mean of its last {sweep.last} rounds.")
    if sweep.axis.setting == SITES:
        notes.append("Each value has sites of its own, and its figures are of those.")
    if not whole:
        notes.append(FEWER_SITES)
    return notes


def picture(sweep: Sweep, *, framed: bool = False) -> bytes:
    """Return the picture, an SVG: a panel for each metric, a line for each method, or points where values are names.

    They are means over seeds, bands reach from the lowest to the highest seed. `framed` adds the title, for a file of
    its own.
    """
    return svg(drawn(lambda: _figure(sweep, framed=framed)), title_of_runs(sweep.outcomes))


def _figure(sweep: Sweep, *, framed: bool) -> Figure:
    metrics = metrics_of(sweep.outcomes)
    height = HEIGHT * len(metrics) + 0.5 + 0.16 * math.ceil(len(sweep.runs) / COLUMNS)
    made = Figure(figsize=(WIDTH, height), facecolor=LIGHT.paper, layout="constrained")
    panels = made.subplots(len(metrics), 1, squeeze=False)[:, 0]
    for metric, axes in zip(metrics, panels, strict=True):
        _draw(axes, sweep, metric)
    panels[-1].set_xlabel(sweep.axis.setting)
    handles = {
        shown_as: line for axes in panels for line, shown_as in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    names = [shorten(name, LETTERS) for name in handles]
    made.legend(handles.values(), names, loc="outside lower center", ncols=COLUMNS, frameon=False, fontsize=7.5)
    if framed:
        made.suptitle(title_of_runs(sweep.outcomes), x=0.01, ha="left", fontsize=8.5, color=LIGHT.ink)
    return made


def _draw(axes: Axes, sweep: Sweep, metric: str) -> None:
    """Draw one metric of all methods."""
    values, count = sweep.axis.values, min(len(sweep.runs), DISTINCT)
    numbers = sweep.axis.numbers
    where = [float(value) for value in values] if numbers else [float(number) for number in range(len(values))]
    if numbers and min(where) > 0 and max(where) / min(where) >= LOG_RATIO:
        axes.set_xscale("log")
    curves: list[list[Line2D]] = []
    for number, method in enumerate(sweep.runs):
        style = line_style(number % DISTINCT, count)
        known = sorted((x, figures) for x, figures in zip(where, sweep.figures(method, metric), strict=True) if figures)
        if not known:
            continue
        places, means = [x for x, _ in known], [statistics.fmean(figures) for _, figures in known]
        if any(len(figures) > 1 for _, figures in known):
            low, high = ([choose(figures) for _, figures in known] for choose in (min, max))
            if numbers:
                axes.fill_between(places, low, high, color=style["color"], alpha=0.13, linewidth=0)
            else:
                axes.vlines(places, low, high, color=style["color"], alpha=0.3, linewidth=3)
        joined = {} if numbers else {"linestyle": "none"}  # a line between names would mean nothing
        curves.append(axes.plot(places, means, label=method, **(style | point_style(number) | joined)))
    axes.margins(x=MARGIN)
    set_apart(axes, curves)
    letters = max(12, AXIS_LETTERS // len(values))
    axes.set_xticks(where, [shorten(_tick(value), letters) for value in values])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color=LIGHT.grid, linewidth=0.6)
    axes.set_ylabel(f"{TITLES[metric]}, mean of the sites (%)")


def _tick(value: Any) -> str:
    """Return a value as the axis names it: settings of a mapping without its marks."""
    return ", ".join(f"{name}={shown(own)}" for name, own in value.items()) if isinstance(value, dict) else shown(value)


def page(sweep: Sweep) -> str:
    """Return one self-contained HTML page: picture and table."""
    caution, whole = caution_of(sweep.outcomes), table(sweep)
    methods = ", ".join(sweep.runs)
    shown_values = ", ".join(map(shown, sweep.axis.values))
    kind = "Lines" if sweep.axis.numbers else "Points"
    lines = f"{kind} of {title_of(metrics_of(sweep.outcomes))} at {sweep.axis.setting} {shown_values}, for {methods}."
    drawing = Picture(picture(sweep), caption=SIDE_BY_SIDE * (len(sweep.runs) > 1))
    rows = replace(whole, notes=tuple(note for note in whole.notes if note != f"{caution}."))
    return page_of(
        f"{sweep.title}: sweep",
        sweep.title,
        seeds_of(sweep.outcomes),
        warnings=(caution,),
        sections=(section("Picture", figure(drawing, lines)), section("Table", laid_out(rows))),
        more_style=STYLE,
    )

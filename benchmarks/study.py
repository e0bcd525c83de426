# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The study behind `learning.py --study`: which runs it has, and what their figures are.

A run is a world (how many pairs of words contradict each other between sites), a method, a seed and a number of rounds
of one epoch. Each is one line of `benchmarks/results/study.jsonl`; what is there is not run again. The figure of a run
is the mean accuracy of the five sites over the last three rounds; methods are compared seed by seed, with a 95 %
interval of the paired difference (Student's t). Its settings were chosen on seeds from 100 on.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from result_table import ResultTable

from fedpeft.compare.intervals import interval, paired, signed

RESULTS = Path(__file__).parent / "results" / "study.jsonl"
SEEDS = (0, 1, 2, 3, 4)
WORLDS = (0, 7)
BETWEEN = 3  # a world in the middle, for the methods of FEW
SHORT, LONG = 12, 30
ENOUGH = 3  # seeds, of a method in README's table
LAST = 3  # rounds whose mean is a run's figure
METHODS = (
    "classifier",
    "local",
    "fedavg",
    "fedavg, keeping 20 % of the own",
    "fedavg, keeping by agreement",
    "fedpia, frozen global",
    "fedpia, frozen global, no server",
    "fedpia, server only",
    "ours",
    "fedprox",
    "ditto",
    "fedala",
)
FIRST = (
    "fedavg",
    "ours",
    "fedpia, frozen global",
    "fedpia, server only",
    "fedala",
    "fedavg, keeping by agreement",
    "local",
    "ditto",
)
FEW = ("fedavg", "fedpia, server only", "ours")
RANDOM, ALONE = "4 layers, fd", "4 layers, lntk alone"
LAYERS = (
    "f3ocus, exact",
    "f3ocus, nsga2",
    "f3ocus, exact, outputs",
    ALONE,
    "4 layers, lntk of the outputs",
    RANDOM,
    "4 layers, last_k",
    "4 layers, fishmask",
    "4 layers, snip",
)


@dataclass(frozen=True)
class Run:
    """One run of the study."""

    dialects: int
    method: str
    seed: int
    rounds: int = SHORT

    @property
    def overrides(self) -> list[str]:
        """Settings that the study gives to every method alike."""
        return [f"data.dialects={self.dialects}", f"training.rounds={self.rounds}", "training.local_epochs=1"]


def runs(seeds: Sequence[int]) -> Iterator[Run]:
    """All runs, those that answer the first question first."""
    others = [method for method in METHODS if method not in FIRST]
    for seed in seeds:
        yield from (Run(world, method, seed) for world in reversed(WORLDS) for method in FIRST)
    for seed in seeds:
        yield from (Run(0, method, seed) for method in LAYERS)
        yield from (Run(BETWEEN, method, seed) for method in FEW)
    for seed in seeds:
        yield from (Run(world, method, seed) for world in reversed(WORLDS) for method in others)
        yield from (Run(world, method, seed, LONG) for world in WORLDS for method in FEW)


def compact(result: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a run; not its seconds: runs of a study share a machine with whatever else runs there."""
    return {"method": result["method"], "seed": result["seed"], "rounds": overall(result["rounds"])}


def overall(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> list[dict[str, dict[str, float]]]:
    """The overall accuracy alone of every site in every round, to a hundredth of a percent."""
    return [{name: {"overall": round(site["overall"], 4)} for name, site in sites.items()} for sites in rounds]


def figure(result: dict[str, Any]) -> float:
    """Mean accuracy of the sites over the last rounds, in percent."""
    last = result["rounds"][-LAST:]
    return 100 * statistics.fmean(site["overall"] for sites in last for site in sites.values())


def headline(results: Sequence[dict[str, Any]], *, baseline: str = "fedavg") -> ResultTable:
    """The worlds of the first question side by side, with the methods that ran with `ENOUGH` seeds in both."""
    worlds = [_figures(results)[dialects, SHORT] for dialects in WORLDS]
    chosen = [method for method in METHODS if all(len(world.get(method, ())) >= ENOUGH for world in worlds)]
    names = [f"{name}, {dialects} swapped" for dialects in WORLDS for name in ("accuracy %", f"minus {baseline}")]
    rows = []
    for method in chosen:
        counts = dict.fromkeys(str(len(world[method])) for world in worlds)
        cells = [cell for world in worlds for cell in _cells(world, method, baseline)]
        rows.append((method, *cells, " and ".join(counts)))
    return ResultTable(f"{SHORT} rounds of one epoch", ("method", *names, "seeds"), rows)


def groups(results: Sequence[dict[str, Any]], *, baseline: str = "fedavg") -> Iterator[ResultTable]:
    """Accuracy and the paired difference to the baseline, by world and number of rounds; then those of few layers."""
    heads = ("method", "accuracy %", f"minus {baseline}, 95 %", "seeds")
    figures = _figures(results)
    for (dialects, rounds), methods in figures.items():
        rows = [
            (name, *_cells(methods, name, baseline), str(len(methods[name]))) for name in METHODS if name in methods
        ]
        if rows:
            yield ResultTable(f"{dialects} of 7 pairs swapped, {rounds} rounds of one epoch", heads, rows)
    if rows := list(_layers(figures.get((WORLDS[0], SHORT), {}), baseline)):
        heads = ("method", "accuracy %", *(f"minus {name}, 95 %" for name in (baseline, RANDOM, ALONE)), "seeds")
        yield ResultTable(f"4 of 12 layers, no pair swapped, {SHORT} rounds of one epoch", heads, rows)


def _layers(methods: Mapping[str, Mapping[int, float]], baseline: str) -> Iterator[tuple[str, ...]]:
    """The rows of sites that train 4 layers, each against what trains all, random layers and the score alone."""
    for name in (name for name in LAYERS if name in methods):
        accuracy, difference = _cells(methods, name, baseline)
        others = (_cells(methods, name, other)[1] for other in (RANDOM, ALONE))
        yield name, accuracy, difference, *others, str(len(methods[name]))


def _figures(results: Sequence[dict[str, Any]]) -> dict[tuple[int, int], dict[str, dict[int, float]]]:
    """Swapped pairs and number of rounds -> method -> seed -> figure."""
    figures: dict[tuple[int, int], dict[str, dict[int, float]]] = {}
    for result in results:
        group = figures.setdefault((result["dialects"], len(result["rounds"])), {})
        group.setdefault(result["method"], {})[result["seed"]] = figure(result)
    return dict(sorted(figures.items()))


def _cells(methods: Mapping[str, Mapping[int, float]], method: str, baseline: str) -> tuple[str, str]:
    """Mean accuracy of a method, and its paired difference to the baseline with the interval."""
    mine, theirs = methods[method], methods.get(baseline, {})
    pairs = paired(mine, theirs) if method != baseline else []
    return f"{statistics.fmean(mine.values()):.1f}", signed(*interval(pairs)) if pairs else ""

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The study behind `learning.py --study`: which runs it has, and what their figures are.

A run is a world (how many pairs of words contradict each other between sites), a method, a seed and a number of rounds
of one epoch. Each is one line of `benchmarks/results/study.jsonl`; what is there is not run again. The figure of a run
is the mean accuracy of the five sites over the last three rounds; methods are compared seed by seed, with a 95 %
interval of the paired difference (Student's t). Its settings were chosen on seeds from 100 on.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from result_table import ResultTable

from fedpeft.compare.table import paired, signed

RESULTS = Path(__file__).parent / "results" / "study.jsonl"
SEEDS = (0, 1, 2, 3, 4)
SEEDS_OF_LAYERS = tuple(range(10))  # the rows of `LAYERS` differ more from seed to seed
WORLDS = (0, 7)
MIDDLE_WORLD = 3
SHORT, LONG = 12, 30
HEADLINE_SEEDS = 3  # seeds that a method of the headline table has at least
LAST = 3  # rounds whose mean is a run's figure
OURS = "ours"
TWO_BRANCHES, WEIGHT_SPACE, FROZEN_HALF = "fedpia, two branches", "fedpia, weight space", "fedpia, frozen half"
FORMS = (TWO_BRANCHES, WEIGHT_SPACE, FROZEN_HALF)  # of FedPIA; in long runs at a rate of their own alone
RATE = "5e-3"  # of every row that trains adapters and has no other
RATES = {  # by row and rounds, the best of those tried on seeds from 100 on (choices.py)
    ("local", SHORT): RATE,
    **{(row, SHORT): "8e-3" for row in ("fedprox", "ditto", "fedala")},
    **{(row, rounds): "8e-3" for row in ("fedavg", OURS, *FORMS) for rounds in (SHORT, LONG)},
    **{(row, LONG): "1.2e-2" for row in ("fedavg", OURS, FROZEN_HALF)},
    (TWO_BRANCHES, LONG): RATE,
}
NEXT_RATE = "8e-3"  # of long runs: rows with another rate of their own have this one too, so that both can be seen
HEADS = {"classifier": "3e-2"}  # a row that trains no adapter
METHODS = (
    "classifier",
    "local",
    "fedavg",
    "fedavg, keeping 20 % of the own",
    "fedavg, keeping by agreement",
    TWO_BRANCHES,
    "fedpia, two branches, no server",
    WEIGHT_SPACE,
    FROZEN_HALF,
    "fedpia, server only",
    OURS,
    "fedprox",
    "ditto",
    "fedala",
)
RUN_FIRST = (  # whether FedPIA or keeping one's own beats averaging shows before all of METHODS have run
    "fedavg",
    OURS,
    WEIGHT_SPACE,
    TWO_BRANCHES,
    "fedpia, server only",
    "fedala",
    "fedavg, keeping by agreement",
    "local",
    "ditto",
)
METHODS_OF_LONG_RUNS = (
    "fedavg",
    WEIGHT_SPACE,
    TWO_BRANCHES,
    "fedpia, server only",
    OURS,
    FROZEN_HALF,
    "local",
    "fedavg, keeping by agreement",
)
METHODS_OF_MIDDLE_WORLD = (
    "classifier",
    "local",
    "fedavg",
    "fedavg, keeping 20 % of the own",
    "fedavg, keeping by agreement",
    "fedpia, server only",
    OURS,
)
RANDOM, ALONE, OUTPUTS = "4 layers, random", "4 layers, lntk alone", "4 layers, lntk of the outputs"
FIXED = "4 layers, random, fixed"
LAYERS = (
    "f3ocus, exact",
    "f3ocus, nsga2",
    "f3ocus, exact, outputs",
    ALONE,
    OUTPUTS,
    RANDOM,
    FIXED,
    "4 layers, first_k",
    "4 layers, last_k",
    "4 layers, fishmask",
    "4 layers, snip",
    "4 layers, lntk_squared",
    "4 layers, fedselect",
)
ROWS = (*METHODS, *LAYERS)
MIDWAY = 20  # a round of the long runs
SHOWN_ROUNDS = (10, 15, MIDWAY, 25, LONG)
AIMS = (  # in words, in which world, and the two rows whose difference it is
    ("ours 3 points or more above FedAvg", 7, OURS, "fedavg"),
    ("ours not below FedAvg", 0, OURS, "fedavg"),
    *(("ours above local", d, OURS, "local") for d in sorted((*WORLDS, MIDDLE_WORLD))),
    *(("ours not below Ditto", d, OURS, "ditto") for d in WORLDS),
    *(("ours not below FedALA", d, OURS, "fedala") for d in WORLDS),
    ("server PIA above FedAvg at 20 rounds", 0, "fedpia, server only", "fedavg"),
    ("F3OCUS above LNTK, kernel of the outputs", 0, "f3ocus, exact, outputs", OUTPUTS),
    ("LNTK of the outputs above random layers", 0, OUTPUTS, RANDOM),
    ("F3OCUS above LNTK, kernel of the loss", 0, "f3ocus, exact", ALONE),
    ("LNTK of the loss above random layers", 0, ALONE, RANDOM),
)


Schedule = Sequence[Mapping[str, Sequence[int]]]  # of a run: in each round, the layers that each site trained


@dataclass(frozen=True)
class Run:
    """One run of the study.

    Args:
        dialects: pairs of words that are swapped.
        method: a row.
        seed: of data, initial values and order.
        rounds: of one epoch.
        rate: the learning rate; empty: `RATE`, or that of `HEADS`.
    """

    dialects: int
    method: str
    seed: int
    rounds: int = SHORT
    rate: str = ""

    @property
    def base(self) -> list[str]:
        """Settings that the study gives to every method alike."""
        return [f"data.dialects={self.dialects}", f"training.rounds={self.rounds}", "training.local_epochs=1"]

    @property
    def overrides(self) -> list[str]:
        """Settings beside those of its row."""
        return [*self.base, *([f"training.learning_rate={self.rate}"] if self.rate else [])]


def run_of(line: Mapping[str, Any]) -> Run:
    """The run of a line of the results."""
    return Run(line["dialects"], line["method"], line["seed"], len(line["rounds"]), line.get("rate", ""))


def _own(method: str, rounds: int) -> str:
    """The rate that a row has for itself in runs of this length; empty: `RATE`, or none was searched for."""
    rate = RATES.get((method, rounds), "")
    return "" if rate == RATE else rate


def tuned(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs in `WORLDS` of the rows whose rate was searched for in runs of this length, at it."""
    searched = {*RATES, *((row, SHORT) for row in HEADS)}
    runs = [(one, run_of(one)) for one in results]
    known = [(one, run) for one, run in runs if run.dialects in WORLDS and (run.method, run.rounds) in searched]
    return [one for one, run in known if run.rate == _own(run.method, run.rounds)]


def alike(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of all rows at one rate."""
    return [one for one in results if not run_of(one).rate]


def runs(seeds: Sequence[int] | None = None) -> Iterator[Run]:
    """All runs: the long ones, those of `RUN_FIRST`, of four layers and of the world in the middle, then the others.

    Args:
        seeds: of every row; None: `SEEDS`, and last the rows of four layers with the others of `SEEDS_OF_LAYERS`.
    """
    later = [] if seeds else [seed for seed in SEEDS_OF_LAYERS if seed not in SEEDS]
    seeds = seeds or SEEDS
    others = [method for method in METHODS if method not in RUN_FIRST]
    for seed in seeds:
        longest = [(world, method) for method in METHODS_OF_LONG_RUNS for world in reversed(WORLDS)]
        yield from (run for world, method in longest for run in _at_its_rates(world, method, seed, LONG))
    for seed in seeds:
        yield from (
            run for world in reversed(WORLDS) for method in RUN_FIRST for run in _at_its_rates(world, method, seed)
        )
    for seed in seeds:
        yield from (Run(0, method, seed) for method in LAYERS)
        yield from (Run(MIDDLE_WORLD, method, seed) for method in METHODS_OF_MIDDLE_WORLD)
    for seed in seeds:
        yield from (
            run for world in reversed(WORLDS) for method in others for run in _at_its_rates(world, method, seed)
        )
    yield from (Run(0, method, seed) for seed in later for method in LAYERS)


def _at_its_rates(world: int, method: str, seed: int, rounds: int = SHORT) -> Iterator[Run]:
    """Runs at the rate of all rows, and at the row's own where it has one."""
    own = _own(method, rounds)
    if not (own and rounds == LONG and method in FORMS):
        yield Run(world, method, seed, rounds)
    if own:
        yield Run(world, method, seed, rounds, own)
    if rounds == LONG and own != NEXT_RATE and (method, rounds) in RATES:
        yield Run(world, method, seed, rounds, NEXT_RATE)


def refusal(methods: Sequence[str], overrides: Sequence[str], file: Path) -> str | None:
    """Why the study does not run like this, and what to do instead; None: it does.

    Args:
        methods: the rows to run; none: all.
        overrides: settings that every run gets, `SECTION.NAME=VALUE`.
        file: of the results.
    """
    names = "; ".join(ROWS)
    for method in methods:
        if method not in ROWS:
            return f"{method!r} of --methods is no row of the study: leave out --study, or name some of {names}"
    own = ("training.seed", "data.seed", "training.learning_rate")  # a row runs at rates of its own
    fixed = [setting.partition("=")[0] for setting in (*Run(0, OURS, 0).base, *own)]
    for setting in overrides:
        if setting.partition("=")[0] in fixed:
            return f"--set {setting} changes what makes a run of the study ({', '.join(fixed)}): leave it out"
    if overrides and file.resolve() == RESULTS.resolve():
        return f"--set {overrides[0]} with --study is not for the published results: name another file with --out"
    return None


def compact(result: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a run: its accuracies, which layers each site trained where it did not train all, and how many
    updates the server refused. Not its seconds: runs of a study share a machine with whatever else runs there."""
    kept = {name: result[name] for name in ("method", "seed", "refused", "layers") if name in result}
    return {**kept, "rounds": overall(result["rounds"])}


def overall(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> list[dict[str, dict[str, float]]]:
    """The overall accuracy alone of every site in every round, to a hundredth of a percent."""
    return [{name: {"overall": round(site["overall"], 4)} for name, site in sites.items()} for sites in rounds]


def figure(result: dict[str, Any], until: int | None = None) -> float:
    """Mean accuracy of the sites over the last rounds, in percent.

    Args:
        result: of a run.
        until: the last round that counts; None: of the run.
    """
    last = result["rounds"][:until][-LAST:]
    return 100 * statistics.fmean(site["overall"] for sites in last for site in sites.values())


def headline(results: Sequence[dict[str, Any]], rounds: int, *, baseline: str = "fedavg") -> ResultTable:
    """Both `WORLDS` side by side, with the methods that ran with `HEADLINE_SEEDS` in both; without any, no row."""
    figures = _figures(results)
    rates = _rates(one for one in results if len(one["rounds"]) == rounds)
    worlds = [figures.get((dialects, rounds), {}) for dialects in WORLDS]
    chosen = [method for method in METHODS if all(len(world.get(method, ())) >= HEADLINE_SEEDS for world in worlds)]
    names = [f"{name}, {dialects} swapped" for dialects in WORLDS for name in ("accuracy %", f"minus {baseline}")]
    rows = []
    for method in chosen:
        counts = dict.fromkeys(str(len(world[method])) for world in worlds)
        cells = [c for world in worlds for c in (_accuracy(world, method), _difference(world, method, baseline))]
        rows.append((method, *cells, rates[method], " and ".join(counts)))
    return ResultTable(f"{rounds} rounds of one epoch", ("method", *names, "rate", "seeds"), rows)


def groups(results: Sequence[dict[str, Any]], *, baseline: str = "fedavg") -> Iterator[ResultTable]:
    """Accuracy and the paired differences to the baseline and of `OURS`, by world and number of rounds; then the rows
    of few layers, against what trains all, random layers and each site's own best layers by the two LNTK scores."""
    figures = _figures(results)
    heads = ("method", "accuracy %", f"minus {baseline}, 95 %", f"{OURS} minus it, 95 %", "rate", "seeds")
    for (dialects, rounds), methods in figures.items():
        rates = _rates(one for one in results if (one["dialects"], len(one["rounds"])) == (dialects, rounds))
        rows = [
            (
                name,
                _accuracy(methods, name),
                _difference(methods, name, baseline),
                _difference(methods, OURS, name),
                rates[name],
                str(len(methods[name])),
            )
            for name in METHODS
            if name in methods
        ]
        if rows:
            yield ResultTable(f"{dialects} of 7 pairs swapped, {rounds} rounds of one epoch", heads, rows)
    methods = figures.get((WORLDS[0], SHORT), {})
    compared = (baseline, RANDOM, ALONE, OUTPUTS)
    trained = trained_layers(results)
    rows = [
        (
            name,
            _accuracy(methods, name),
            *(_difference(methods, name, other) for other in compared),
            trained.get(name, ""),
            str(len(methods[name])),
        )
        for name in LAYERS
        if name in methods
    ]
    if rows:
        heads = ("method", "accuracy %", *(f"minus {name}, 95 %" for name in compared), "layers", "seeds")
        yield ResultTable(f"4 of 12 layers, no pair swapped, {SHORT} rounds of one epoch", heads, rows)


def trained_layers(results: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Say of each row of `LAYERS` what its schedules show, and with which row before it they are the same.

    Rows of one fixed choice are one method, whatever their names. Runs of November 2026 and before kept no schedule:
    one whose accuracies are all those of another row, site by site in every round, is said to be the same as that.
    Empty where nothing can be said.
    """
    short = [one for one in results if (one["dialects"], len(one["rounds"])) == (WORLDS[0], SHORT)]
    said: dict[str, str] = {}
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for name in LAYERS:
        runs = {one["seed"]: one for one in short if one["method"] == name}
        kept = {seed: run["layers"] for seed, run in runs.items() if run.get("layers")}
        same = next((other for other, theirs in rows.items() if _agree(runs, theirs)), None)
        seeds = kept.keys() if kept else runs.keys() & rows[same].keys() if same else ()
        parts = [_described(list(kept.values()))] if kept else []
        parts += [f"as {same}" if kept else f"as {same} by all figures"] if same else []
        some = f" ({len(seeds)} of {len(runs)} seeds)" if parts and len(seeds) < len(runs) else ""
        said[name] = ", ".join(parts) + some
        rows[name] = runs
    return said


def _agree(mine: Mapping[int, Mapping[str, Any]], theirs: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether two rows trained the same layers in all seeds that both have, at least one."""
    common = [(mine[seed], theirs[seed]) for seed in mine.keys() & theirs.keys()]
    if not any(one.get("layers") or other.get("layers") for one, other in common):
        return False
    return all(
        one["layers"] == other["layers"]
        if one.get("layers") and other.get("layers")
        else one["rounds"] == other["rounds"]
        for one, other in common
    )


def _described(runs: Sequence[Schedule]) -> str:
    choices = {tuple(layers) for rounds in runs for sites in rounds for layers in sites.values()}
    if len(choices) == 1:
        return f"always {', '.join(map(str, *choices))}"
    return "one choice a run" if all(sites == rounds[0] for rounds in runs for sites in rounds) else "changing"


def aims(results: Sequence[dict[str, Any]]) -> ResultTable:
    """What was aimed at, and the paired differences that came out; left out where no seed has run with both rows."""
    runs = {
        "12 rounds": (SHORT, None),
        "30 rounds": (LONG, None),
        f"rounds {MIDWAY - LAST + 1} to {MIDWAY} of 30": (LONG, MIDWAY),
    }
    figures = {name: _figures(results, until) for name, (_, until) in runs.items()}
    rows = []
    for aim, dialects, mine, theirs in AIMS:
        worlds = [figures[name].get((dialects, rounds), {}) for name, (rounds, _) in runs.items()]
        if any(differences := [_difference(world, mine, theirs) for world in worlds]):
            rows.append((aim, str(dialects), *differences))
    return ResultTable("Aims", ("aim", "swapped", *runs), rows)


def at_each_rate(results: Sequence[dict[str, Any]], *, baseline: str = "fedavg") -> ResultTable:
    """The rows that ran at several rates: accuracy, and the paired differences to the row itself at `RATE` and to the
    baseline at the same rate, in both `WORLDS`."""
    runs = [(one, run_of(one)) for one in results]
    rates = {(run.method, run.rounds, run.rate or RATE) for _, run in runs if run.method in METHODS}
    rows = []
    for rounds, method in ((rounds, method) for rounds in (SHORT, LONG) for method in METHODS):
        own = sorted((rate for one, length, rate in rates if (one, length) == (method, rounds)), key=float)
        for rate in own if len(own) > 1 else ():
            cells, seeds = [], 0
            for dialects in WORLDS:
                figures: dict[str, dict[int, float]] = {}
                for one, run in runs:
                    if (run.dialects, run.rounds) == (dialects, rounds):
                        figures.setdefault(f"{run.method} {run.rate or RATE}", {})[run.seed] = figure(one)
                mine = f"{method} {rate}"
                seeds = max(seeds, len(figures.get(mine, ())))
                others = f"{method} {RATE}", f"{baseline} {rate}"
                cells += [
                    _accuracy(figures, mine) if mine in figures else "",
                    *(_difference(figures, mine, other) for other in others),
                ]
            rows.append((method, str(rounds), rate, *cells, str(seeds)))
    names = [
        f"{name}, {d} swapped"
        for d in WORLDS
        for name in ("accuracy %", f"minus {RATE}", f"minus {baseline}, same rate")
    ]
    return ResultTable("Rows at each of their rates", ("method", "rounds", "rate", *names, "seeds"), rows)


def by_round(results: Sequence[dict[str, Any]]) -> ResultTable:
    """Mean accuracy of the long runs after some of their rounds: the last round is not always the best."""
    rows = []
    for dialects in WORLDS:
        long = [r for r in results if (r["dialects"], len(r["rounds"])) == (dialects, LONG) and r["method"] in METHODS]
        rates = sorted({(METHODS.index(run["method"]), run.get("rate", RATE)) for run in long})
        for method, rate in ((METHODS[index], rate) for index, rate in rates):
            runs = [run for run in long if (run["method"], run.get("rate", RATE)) == (method, rate)]
            means = [
                100 * statistics.fmean(site["overall"] for run in runs for site in run["rounds"][number - 1].values())
                for number in SHOWN_ROUNDS
            ]
            rows.append((method, str(dialects), rate, *(f"{mean:.1f}" for mean in means), str(len(runs))))
    heads = ("method", "swapped", "rate", *(f"round {number}" for number in SHOWN_ROUNDS), "seeds")
    return ResultTable(f"Accuracy % by round, {LONG} rounds of one epoch", heads, rows)


def _figures(
    results: Sequence[dict[str, Any]], until: int | None = None
) -> dict[tuple[int, int], dict[str, dict[int, float]]]:
    """Swapped pairs and number of rounds -> method -> seed -> figure."""
    figures: dict[tuple[int, int], dict[str, dict[int, float]]] = {}
    for result in results:
        group = figures.setdefault((result["dialects"], len(result["rounds"])), {})
        group.setdefault(result["method"], {})[result["seed"]] = figure(result, until)
    return dict(sorted(figures.items()))


def _rates(results: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Method -> the learning rate of its runs."""
    return {one["method"]: one.get("rate", HEADS.get(one["method"], RATE)) for one in results}


def _accuracy(methods: Mapping[str, Mapping[int, float]], method: str) -> str:
    """Mean accuracy of a method."""
    return f"{statistics.fmean(methods[method].values()):.1f}"


def _difference(methods: Mapping[str, Mapping[int, float]], mine: str, theirs: str) -> str:
    """Paired difference of two methods with its interval; empty for a method and itself, or without a common seed."""
    pairs = paired(methods.get(mine, {}), methods.get(theirs, {})) if mine != theirs else []
    return signed(pairs) if pairs else ""

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Other values of the settings of the study's rows, compared on seeds from 100 on, which the study does not report.

    python benchmarks/choices.py                               # what is missing in the results: hours of two cores
    python benchmarks/choices.py --questions share --seeds 100 # some of it
    python benchmarks/choices.py --table                       # the tables of what is there, without a run
    python benchmarks/publish.py --write                       # the same in the docs

A question has some values of one setting, in the worlds without and with seven swapped pairs. All of them run on the
first seed; the study's value and the best of the others, by the mean over the worlds, run on the other seeds too.
Figures are those of `study.py`: the mean of the five sites and the last three rounds. A run is one line of
`benchmarks/results/choices.jsonl`; what is there is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import json_lines
import learning
import parallel
import study
from measured import WIDTH, machine
from result_table import ResultTable
from rich.console import Console

from fedpeft.compare.table import paired, signed

RESULTS = Path(__file__).parent / "results" / "choices.jsonl"
SEEDS = (100, 101, 102)
FEDAVG, OURS = "fedavg", study.OURS
LENGTHS = (study.SHORT, study.LONG)
RATED_LONG = (FEDAVG, study.WEIGHT_SPACE, study.TWO_BRANCHES, study.FROZEN_HALF, OURS)
RATED = (*RATED_LONG, "local", "fedprox", "ditto", "fedala")


@dataclass(frozen=True)
class Value:
    """A row of the study with one value of a setting.

    Args:
        method: a row of the study.
        overrides: settings that differ from the row's.
        rounds: of one epoch.
        worlds: pairs of words that are swapped.
    """

    method: str
    overrides: tuple[str, ...] = ()
    rounds: int = study.SHORT
    worlds: tuple[int, ...] = study.WORLDS

    @property
    def key(self) -> str:
        """What tells its runs from others in the file of the results."""
        return " ".join([self.method, *self.overrides])


def _set(method: str, setting: str, values: Sequence[str], default: str, **others: Any) -> dict[str, Value]:
    """Values of a setting; that which the study's row has anyway is not set."""
    overrides = {value: () if value == default else (f"{setting}={value}",) for value in values}
    return {value: Value(method, overrides[value], **others) for value in values}


def _rates(method: str, rounds: int) -> tuple[str, ...]:
    default, *others = RATES[rounds]
    return (default, *LOWER.get((method, rounds), ()), *others)


RATES = {study.SHORT: (study.RATE, "3e-3", "8e-3", "1.2e-2"), study.LONG: (study.RATE, "8e-3", "1.2e-2", "2e-2")}
LOWER = {(study.TWO_BRANCHES, study.LONG): ("3e-3",)}  # where the best of RATES is the lowest
LONG = {"rounds": study.LONG, "worlds": (study.WORLDS[-1],)}
QUESTIONS: dict[str, tuple[str, dict[str, Value]]] = {  # what it asks, and its values, the study's first
    "share": (
        "Share of the global adapter (`ours`)",
        _set(OURS, "method.pia.share", ("agreement", "validation", "[1, 0.6]", "0.8", "0.5"), "agreement"),
    ),
    **{
        f"rate, {method}, {rounds} rounds": (
            f"Learning rate of `{method}`, {rounds} rounds",
            _set(method, "training.learning_rate", _rates(method, rounds), study.RATE, rounds=rounds),
        )
        for rounds, methods in ((study.LONG, RATED_LONG), (study.SHORT, RATED))
        for method in methods
    },
    "decay": (
        f"Decay of the learning rate, FedAvg, {study.LONG} rounds",
        _set(FEDAVG, "training.decay", ("linear", "none"), "linear", **LONG),
    ),
    "mu": ("mu of FedProx", _set("fedprox", "training.proximal_mu", ("0.01", "0.001", "0.1", "1"), "0.01")),
    "lambda": ("lambda of Ditto", _set("ditto", "training.ditto_lambda", ("0.1", "0.01", "0.5", "2"), "0.1")),
    "ala": ("Rate of FedALA's weights", _set("fedala", "training.ala_rate", ("1", "10", "100"), "1")),
}


@dataclass(frozen=True)
class Run:
    """One run: a value in a world with a seed."""

    value: Value
    dialects: int
    seed: int

    @property
    def key(self) -> tuple[str, int, int, int]:
        """What tells its line from others in the file of the results."""
        return self.value.key, self.dialects, self.seed, self.value.rounds


def runs(questions: Sequence[str], seeds: Sequence[int], lines: Sequence[Mapping[str, Any]]) -> Iterator[Run]:
    """The runs of these questions, seed by seed; after the first seed, those of the finalists in `lines`."""
    seen = set()
    for seed in seeds:
        for question in questions:
            for value in QUESTIONS[question][1].values() if seed == SEEDS[0] else finalists(question, lines):
                for dialects in value.worlds:
                    one = Run(value, dialects, seed)
                    if one.key not in seen:
                        seen.add(one.key)
                        yield one


def finalists(question: str, lines: Sequence[Mapping[str, Any]]) -> list[Value]:
    """The study's value and the best of the others on the first seed; none where they have not all run."""
    default, *others = QUESTIONS[question][1].values()
    figures = {key_of(line): study.figure(dict(line)) for line in lines}
    wanted = {value: [Run(value, world, SEEDS[0]).key for world in value.worlds] for value in (default, *others)}
    if not all(key in figures for keys in wanted.values() for key in keys):
        return []
    return [default, max(others, key=lambda value: statistics.fmean(figures[key] for key in wanted[value]))]


def run(one: Run) -> dict[str, Any]:
    """The line of a run."""
    default = study.Run(one.dialects, one.value.method, one.seed, one.value.rounds).base
    settings = learning.settings_of(one.value.method)
    result = learning.run_with(settings, one.value.method, one.seed, [*default, *one.value.overrides])
    return {**study.compact(result), "value": one.value.key, "dialects": one.dialects}


def key_of(line: Mapping[str, Any]) -> tuple[str, int, int, int]:
    """`Run.key` of a line."""
    return line["value"], line["dialects"], line["seed"], len(line["rounds"])


def tables(lines: Sequence[Mapping[str, Any]]) -> Iterator[ResultTable]:
    """A table for each question that has runs: accuracy by world, and the paired difference to the first that ran.

    A row has the seeds that ran in all its worlds; its difference, those of them that the first one has too.
    """
    for title, values in QUESTIONS.values():
        first = next(iter(values.values()))
        ran = {name: found for name, value in values.items() if (found := _figures(lines, value))}
        if not ran:
            continue
        default = next(iter(ran))
        rows = []
        for name, figures in ran.items():
            cells = []
            for place in range(len(first.worlds)):
                mine, theirs = ({seed: row[place] for seed, row in of.items()} for of in (figures, ran[default]))
                pairs = [] if name == default else paired(mine, theirs)
                cells += [f"{statistics.fmean(mine.values()):.1f}", signed(pairs) if pairs else ""]
            rows.append((name, *cells, str(len(figures))))
        columns = [
            f"{column}, {world} swapped" for world in first.worlds for column in ("accuracy %", f"minus {default}")
        ]
        yield ResultTable(title, ("value", *columns, "seeds"), rows)


def _figures(lines: Sequence[Mapping[str, Any]], value: Value) -> dict[int, tuple[float, ...]]:
    """Seed -> the figure in each of the value's worlds, of the seeds that ran in all of them."""
    found = {key_of(line): study.figure(dict(line)) for line in lines}
    seeds = sorted({seed for key, _, seed, rounds in found if (key, rounds) == (value.key, value.rounds)})
    worlds = {seed: [found.get(Run(value, world, seed).key) for world in value.worlds] for seed in seeds}
    return {seed: tuple(figures) for seed, figures in worlds.items() if None not in figures}


def best_rates(lines: Sequence[Mapping[str, Any]], rounds: int) -> dict[str, str]:
    """Row -> the rate with the highest mean over worlds and seeds, of two alike the smaller; of the rows of `RATED`.

    The rates that count have run in both worlds, on as many seeds as any other: the finalists, once they ran. A row of
    which only one rate has run has no best one.
    """
    found = {}
    for method in RATED:
        _, values = QUESTIONS.get(f"rate, {method}, {rounds} rounds", ("", {}))
        tried = {rate: figures for rate, value in values.items() if (figures := _figures(lines, value))}
        if len(tried) > 1:
            most = max(map(len, tried.values()))
            means = {
                rate: statistics.fmean(itertools.chain(*figures.values()))
                for rate, figures in tried.items()
                if len(figures) == most
            }
            found[method] = max(means, key=lambda rate: (means[rate], -float(rate)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), metavar="QUESTION")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help=f"default: {SEEDS}")
    parser.add_argument("--processes", type=parallel.at_least_one, default=learning.CORES, help="runs at the same time")
    parser.add_argument("--out", type=Path, default=RESULTS, help="a JSON line for each run")
    parser.add_argument("--table", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    if taken := sorted({*study.SEEDS, *study.SEEDS_OF_LAYERS} & {*chosen.seeds}):
        parser.error(f"--seeds {taken[0]}: the study reports it; choose settings on others, such as {SEEDS}")
    for seeds in () if chosen.table else ({*chosen.seeds} & {SEEDS[0]}, {*chosen.seeds} - {SEEDS[0]}):
        _run_missing(chosen.questions, sorted(seeds), chosen.out, chosen.processes)
    console = Console(width=WIDTH, highlight=False)
    for table in tables(json_lines.read(chosen.out)):
        console.print(table.table())
    console.print(machine())


def _run_missing(questions: Sequence[str], seeds: Sequence[int], file: Path, processes: int) -> None:
    """Run what `file` lacks, with a line in it for each run that ends."""
    lines = list(json_lines.read(file))
    known = set(map(key_of, lines))
    missing = [one for one in runs(questions, seeds, lines) if one.key not in known]
    with parallel.processes(processes) as pool:
        futures = {pool.submit(run, one): one for one in missing}
        for number, future in enumerate(as_completed(futures), 1):
            line = future.result()
            json_lines.append(file, line)
            print(
                f"{number}/{len(futures)} {line['value']}, {line['dialects']} swapped, seed {line['seed']}: "
                f"{study.figure(line):.1f} %",
                flush=True,
            )


if __name__ == "__main__":
    main()

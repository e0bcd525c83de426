# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Other values of the settings of the study's rows, compared on seeds from 100 on, which the study does not report.

    python benchmarks/choices.py                               # what is missing in the results: hours of two cores
    python benchmarks/choices.py --questions share --seeds 100 # some of it
    python benchmarks/choices.py --table                       # the tables of what is there, without a run
    python benchmarks/publish.py --write                       # the same in the docs

A question has some values of one setting, in the worlds without and with seven swapped pairs. Figures are those of
`study.py`: the mean of the five sites and the last three rounds. A run is one line of
`benchmarks/results/choices.jsonl`; what is there is not run again.
"""

from __future__ import annotations

import argparse
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
RATED = (FEDAVG, study.WEIGHT_SPACE, study.TWO_BRANCHES, study.FROZEN_HALF, OURS, "local")


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


RATES = (study.RATE, "3e-3", "8e-3", "1.2e-2")
LONG = {"rounds": study.LONG, "worlds": (study.WORLDS[-1],)}
QUESTIONS: dict[str, tuple[str, dict[str, Value]]] = {  # what it asks, and its values, the study's first
    "share": (
        "Share of the global adapter (`ours`)",
        _set(OURS, "method.pia.share", ("agreement", "validation", "[1, 0.6]", "0.8", "0.5"), "agreement"),
    ),
    **{
        f"rate, {method}, {rounds} rounds": (
            f"Learning rate of `{method}`, {rounds} rounds",
            _set(method, "training.learning_rate", RATES, study.RATE, rounds=rounds),
        )
        for rounds in reversed(LENGTHS)
        for method in RATED
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


def runs(questions: Sequence[str], seeds: Sequence[int]) -> Iterator[Run]:
    """The runs of these questions, seed by seed."""
    seen = set()
    for seed in seeds:
        for question in questions:
            for value in QUESTIONS[question][1].values():
                for dialects in value.worlds:
                    one = Run(value, dialects, seed)
                    if one.key not in seen:
                        seen.add(one.key)
                        yield one


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

    Its seeds are those that all its values have which have run, so that its rows can be compared.
    """
    figures: dict[tuple[str, int, int], dict[int, float]] = {}
    for line in lines:
        value, dialects, seed, rounds = key_of(line)
        figures.setdefault((value, dialects, rounds), {})[seed] = study.figure(dict(line))
    for title, values in QUESTIONS.values():
        first = next(iter(values.values()))
        ran = {n: [figures.get((v.key, world, v.rounds), {}) for world in v.worlds] for n, v in values.items()}
        ran = {name: worlds for name, worlds in ran.items() if all(worlds)}
        if not ran:
            continue
        default = next(iter(ran))
        seeds = set.intersection(*(set(world) for worlds in ran.values() for world in worlds))
        rows = []
        for name, worlds in ran.items():
            shared = [{seed: world[seed] for seed in sorted(seeds)} for world in worlds]
            theirs = [{} for _ in worlds] if name == default else ran[default]
            cells = [cell for pair in zip(shared, theirs, strict=True) for cell in _cells(*pair)]
            rows.append((name, *cells, str(len(seeds))))
        columns = [
            f"{column}, {world} swapped" for world in first.worlds for column in ("accuracy %", f"minus {default}")
        ]
        yield ResultTable(title, ("value", *columns, "seeds"), rows)


def best_rates(lines: Sequence[Mapping[str, Any]], rounds: int) -> dict[str, str]:
    """Row -> the rate with the highest mean over worlds and seeds, of two alike the smaller; of the rows of `RATED`.

    The rates that count have run in both worlds; the seeds are those that all of them have. A row of which only one
    rate has run has no best one.
    """
    found = {}
    for method in RATED:
        _, values = QUESTIONS[f"rate, {method}, {rounds} rounds"]
        tried = {
            rate: {(line["dialects"], line["seed"]): study.figure(dict(line)) for line in lines if _is(line, value)}
            for rate, value in values.items()
        }
        tried = {rate: runs for rate, runs in tried.items() if {world for world, _ in runs} == set(study.WORLDS)}
        shared = set.intersection(*map(set, tried.values())) if tried else set()
        if len(tried) > 1 and shared:
            means = {rate: statistics.fmean(runs[one] for one in shared) for rate, runs in tried.items()}
            found[method] = max(means, key=lambda rate: (means[rate], -float(rate)))
    return found


def _is(line: Mapping[str, Any], value: Value) -> bool:
    return (line["value"], len(line["rounds"])) == (value.key, value.rounds)


def _cells(mine: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[str, str]:
    """Mean accuracy and the paired difference; empty without runs."""
    pairs = paired(mine, theirs)
    return f"{statistics.fmean(mine.values()):.1f}" if mine else "", signed(pairs) if pairs else ""


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
    known = {key_of(line) for line in json_lines.read(chosen.out)}
    missing = [one for one in runs(chosen.questions, chosen.seeds) if not chosen.table and one.key not in known]
    with parallel.processes(chosen.processes) as pool:
        futures = {pool.submit(run, one): one for one in missing}
        for number, future in enumerate(as_completed(futures), 1):
            line = future.result()
            json_lines.append(chosen.out, line)
            print(
                f"{number}/{len(futures)} {line['value']}, {line['dialects']} swapped, seed {line['seed']}: "
                f"{study.figure(line):.1f} %",
                flush=True,
            )
    console = Console(width=WIDTH, highlight=False)
    for table in tables(json_lines.read(chosen.out)):
        console.print(table.table())
    console.print(machine())


if __name__ == "__main__":
    main()

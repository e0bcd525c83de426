# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which learning rate suits each method: one grid for all, on a seed that no comparison reports.

    python benchmarks/rates.py                        # resumable: results/rates.jsonl, one line a run
    python benchmarks/rates.py --methods vpt dvpt

Eight rounds of one epoch on the embedded federation (`every_method.py`): every method of the registry, averaged, and
the forms of FedPIA over Houlsby adapters. A row starts with the three rates
in the middle of the grid; while the best is the smallest or the largest tried, the next one is tried as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

import every_method
import json_lines
import learning
import parallel
from measured import WIDTH, machine
from result_table import ResultTable
from rich.console import Console

GRID = (1.5e-4, 5e-4, 1.5e-3, 5e-3, 1.5e-2, 5e-2, 1.5e-1)
FIRST = GRID[2:5]
SEED = 100
ROUNDS = 8


def missing(tried: Mapping[float, float]) -> list[float]:
    """The rates to try next, given the accuracy of those tried; empty: the best one lies between two others."""
    if first := [rate for rate in FIRST if rate not in tried]:
        return first
    best = GRID.index(max(tried, key=lambda rate: (tried[rate], -rate)))
    around = GRID[max(best - 1, 0) : best + 2]
    return [rate for rate in around if rate not in tried]


def accuracy(method: str, rate: float) -> float:
    """Mean accuracy of the sites after the last round, in percent."""
    overrides = [f"training.rounds={ROUNDS}", "training.local_epochs=1"]
    return learning.overall(learning.run_with(every_method.with_rate(method, rate), method, SEED, overrides))


def search(names: list[str], file: Path, processes: int) -> None:
    """Run what is missing for each method, writing a line for each run that ends."""
    tried: dict[str, dict[float, float]] = {name: {} for name in names}
    for line in json_lines.read(file):
        tried.setdefault(line["method"], {})[line["rate"]] = line["accuracy"]
    running: dict[Future, tuple[str, float]] = {}
    with parallel.processes(processes) as pool:

        def start(name: str) -> None:
            if not any(name == other for other, _ in running.values()):
                running.update({pool.submit(accuracy, name, rate): (name, rate) for rate in missing(tried[name])})

        for name in names:
            start(name)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name, rate = running.pop(future)
                tried[name][rate] = round(future.result(), 2)
                json_lines.append(file, {"method": name, "rate": rate, "accuracy": tried[name][rate]})
                print(f"{name} at {rate:g}: {tried[name][rate]:.1f} %", flush=True)
                start(name)
    Console(width=WIDTH, highlight=False).print(table(json_lines.read(file)).table())


def table(lines: Iterable[Mapping[str, Any]]) -> ResultTable:
    """A row for each method: the accuracy at every rate that was tried."""
    tried: dict[str, dict[float, float]] = {}
    for line in lines:
        tried.setdefault(line["method"], {})[line["rate"]] = line["accuracy"]
    rows = [(name, *(_cell(tried[name], rate) for rate in GRID)) for name in every_method.SEARCHED if name in tried]
    title = f"Mean accuracy of five sites, %, seed {SEED}, {ROUNDS} rounds of one epoch; *: taken"
    return ResultTable(title, ("method", *(f"{rate:g}" for rate in GRID)), rows)


def _cell(tried: Mapping[float, float], rate: float) -> str:
    if rate not in tried:
        return ""
    best = max(tried, key=lambda one: (tried[one], -one))
    return f"{tried[rate]:.1f}{'*' if rate == best else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--methods", nargs="+", choices=every_method.SEARCHED, default=every_method.SEARCHED, metavar="METHOD"
    )
    parser.add_argument("--processes", type=parallel.at_least_one, default=learning.CORES, help="runs at the same time")
    parser.add_argument("--out", type=Path, default=every_method.RATES, help="a JSON line for each run")
    chosen = parser.parse_args()
    print(machine(), flush=True)
    search(chosen.methods, chosen.out, chosen.processes)


if __name__ == "__main__":
    main()

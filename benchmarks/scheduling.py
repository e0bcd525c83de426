# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What each scheduler costs and how much of the exact front it finds, beside the paper's pseudo-code.

    python benchmarks/scheduling.py                               all sizes, five seeds; minutes
    python benchmarks/scheduling.py --sizes 10x12 --generations 20   the transcription of NSGA in full
    python benchmarks/scheduling.py --sizes 10x12 --populations 25 50   the heuristics alone, by population (Table 5)

Every seed is an instance of its own: scores share a profile over the layers, as layers of one model do, and differ
between clients; every client trains four layers. The share is the hypervolume in percent of the exact front's, measured
twice: from the worst importance and the worst variance that any assignment within the budgets can have, and, strictly,
from the worst on the exact front itself, where its two ends count nothing. Prints tables in Markdown.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from scheduling_transcription import TRANSCRIPTIONS, Transcription

from fedpeft.scheduling import Front, exact_front, hypervolume, nadir, schedule
from fedpeft.scheduling.front import Archive
from fedpeft.scheduling.heuristics import PopulationSettings, first_population
from fedpeft.scheduling.problem import build_problem

HEURISTICS = tuple(TRANSCRIPTIONS)
STARTS = ("path", "ends", "random")
BUDGET = 4


@dataclass(frozen=True)
class Instance:
    scores: np.ndarray
    budgets: np.ndarray
    seed: int
    exact: Front
    full: bool

    def shares(self, front: Front) -> tuple[float, float]:
        """Hypervolume over the exact front's, from the worst possible corner and from the exact front's own."""
        worst = sum(np.sort(row)[:b].sum() for row, b in zip(self.scores, self.budgets, strict=True))
        crowded = np.var([(self.budgets > layer).sum() for layer in range(self.scores.shape[1])])
        corners = (float(worst), float(crowded)), nadir(self.exact)
        return tuple(hypervolume(front, corner) / hypervolume(self.exact, corner) for corner in corners)


def instance(clients: int, layers: int, seed: int, *, full: bool) -> Instance:
    """Scores exp(profile_l + 0.7 noise_il), each row scaled to the sum 1; four layers for each client."""
    rng = np.random.default_rng(seed)
    scores = np.exp(rng.normal(size=layers) + 0.7 * rng.normal(size=(clients, layers)))
    scores /= scores.sum(axis=1, keepdims=True)
    budgets = np.full(clients, min(BUDGET, layers))
    return Instance(scores, budgets, seed, exact_front(scores, budgets, full=full), full)


def timed(run: Callable[[], Any], budget: float = 0.5) -> tuple[Any, float]:
    """What a run returns, and the seconds of the quickest of up to five runs within a budget of seconds."""
    times: list[float] = []
    while not times or (len(times) < 5 and sum(times) < budget):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return result, min(times)


def peak(run: Callable[[], Any]) -> int:
    """Bytes that Python and numpy held at most beyond what they held before; the C++ of HiGHS is not seen."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def measured(cases: list[Instance], **settings: Any) -> tuple[list[Front], float, float]:
    """Fronts of all instances, median seconds, and peak MiB of the first."""
    results = [
        timed(lambda case=case: schedule(case.scores, case.budgets, seed=case.seed, **settings)) for case in cases
    ]
    memory = peak(lambda: schedule(cases[0].scores, cases[0].budgets, seed=cases[0].seed, **settings))
    return [front for front, _ in results], statistics.median(spent for _, spent in results), memory / 2**20


def transcribed(case: Instance, name: str, generations: int) -> tuple[float, Front, int]:
    """Seconds, the front and the evaluations of the pseudo-code; NSGA's seconds are scaled to 20 generations."""
    setting = {"generations": generations} if name == "nsga2" else {}

    def run() -> tuple[list, int]:
        state = Transcription(case.scores.tolist(), case.budgets.tolist(), case.seed)
        return TRANSCRIPTIONS[name](state, **setting), state.solutions

    (solutions, evaluations), spent = timed(run)
    masks = np.zeros((len(solutions), *case.scores.shape), dtype=bool)
    for mask, solution in zip(masks, solutions, strict=True):
        for client, layers in enumerate(solution):
            mask[client, layers] = True
    archive = Archive(build_problem(case.scores, case.budgets))
    archive.evaluate(masks)
    return spent * (20 / generations if name == "nsga2" else 1), archive.front(), evaluations


def solver_table(cases: list[Instance]) -> dict[str, float]:
    """Print what ours cost and find; returns the median seconds."""
    rows: list[tuple[str, dict[str, Any]]] = [(name, {"solver": name}) for name in HEURISTICS]
    rows += [
        ("exact", {"solver": "exact"}),
        ("exact, linear programs", {"solver": "exact", "method": "linear_program"}),
    ]
    if cases[0].full:
        rows.append(("exact, full", {"solver": "exact", "full": True}))
    if len(cases[0].budgets) > 50:
        rows = [row for row in rows if "linear" not in row[0]]
    print("| solver | seconds | peak MiB | evaluations | points | share % (worst seed) | strict share % (worst seed) |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    medians = {}
    for name, settings in rows:
        fronts, medians[name], memory = measured(cases, **settings)
        points, evaluations = (
            statistics.median(values) for values in zip(*((len(f), f.evaluations) for f in fronts), strict=True)
        )
        shares = zip(*(case.shares(front) for case, front in zip(cases, fronts, strict=True)), strict=True)
        cells = " | ".join(f"{100 * statistics.median(s):.1f} ({100 * min(s):.1f})" for s in map(list, shares))
        print(
            f"| {name} | {medians[name]:.4f} | {memory:.2f} | {evaluations:.0f} | {points:.0f} | {cells} |", flush=True
        )
    return medians


def population_table(cases: list[Instance], populations: list[int]) -> None:
    """Print what the heuristics cost and find with fewer candidates: F3OCUS, supplement, Table 5."""
    print("| solver | " + " | ".join(f"P = {p}: seconds | peak MiB | share % (strict)" for p in populations) + " |")
    print("|---" + "|--:|--:|--:" * len(populations) + "|")
    for name in HEURISTICS:
        cells = []
        for population in populations:
            fronts, spent, memory = measured(cases, solver=name, population=population)
            cells.append(f"{spent:.4f} | {memory:.2f} | {_cell(cases, fronts)}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def transcription_table(case: Instance, medians: dict[str, float], generations: int) -> None:
    """Print what the pseudo-code costs and finds on the first instance, and by how much ours are faster."""
    print("\n| pseudo-code | seconds | evaluations | share % | strict share % | ours faster by | per evaluation by |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in HEURISTICS:
        spent, front, evaluations = transcribed(case, name, generations)
        scaled = name == "nsga2" and generations != 20
        if scaled:
            evaluations = 50 + (evaluations - 50) * 20 // generations
        ours = schedule(case.scores, case.budgets, solver=name, seed=case.seed).evaluations
        ratio = spent / medians[name]
        shares = " | ".join("" if scaled else f"{100 * share:.1f}" for share in case.shares(front))
        label = f"{name} ({generations} of 20 generations, scaled)" if scaled else name
        ratios = " | ".join(f"{r:.0f}" if r >= 10 else f"{r:.1f}" for r in (ratio, ratio * ours / evaluations))
        print(f"| {label} | {spent:.3f} | {evaluations} | {shares} | {ratios} |", flush=True)


def start_table(cases: list[Instance]) -> None:
    """Print what each heuristic makes of the three starts, and what the start is worth by itself."""
    print("\n| share % (strict), median | " + " | ".join(STARTS) + " |")
    print("|---" + "|--:" * len(STARTS) + "|")
    for name in HEURISTICS:
        cells = []
        for start in STARTS:
            fronts = [schedule(c.scores, c.budgets, solver=name, seed=c.seed, start=start) for c in cases]
            cells.append(_cell(cases, fronts))
        print(f"| {name} | {' | '.join(cells)} |")
    cells = []
    for start in STARTS:
        fronts = []
        for case in cases:
            archive = Archive(build_problem(case.scores, case.budgets))
            settings = PopulationSettings(start=start)
            archive.evaluate(first_population(archive.problem, settings, np.random.default_rng(case.seed)))
            fronts.append(archive.front())
        cells.append(_cell(cases, fronts))
    print(f"| the start alone | {' | '.join(cells)} |", flush=True)


def _cell(cases: list[Instance], fronts: list[Front]) -> str:
    shares = zip(*(case.shares(front) for case, front in zip(cases, fronts, strict=True)), strict=True)
    wide, strict = (100 * statistics.median(values) for values in shares)
    return f"{wide:.1f} ({strict:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=["5x12", "10x12", "10x32", "100x32"], help="clients x layers")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--generations", type=int, default=1, help="of the transcription of NSGA, scaled to 20")
    parser.add_argument("--full-up-to", type=int, default=400, help="clients * layers up to which the front is full")
    parser.add_argument("--populations", nargs="+", type=int, metavar="P", help="the heuristics alone, by population")
    options = parser.parse_args()
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "pymoo"))
    print(f"{_machine()}, Python {platform.python_version()}, {libraries}, {datetime.date.today()}")
    warm = instance(3, 4, 0, full=True)
    for name in (*HEURISTICS, "exact"):  # loads the libraries
        schedule(warm.scores, warm.budgets, solver=name)
    for size in options.sizes:
        clients, layers = map(int, size.split("x"))
        full = clients * layers <= options.full_up_to
        cases = [instance(clients, layers, seed, full=full) for seed in range(options.seeds)]
        kind = "full exact front" if full else "supported exact front (the full one is out of reach)"
        print(f"\n### {clients} clients, {layers} layers\n\nmedians of {options.seeds} seeds; shares of the {kind}\n")
        if options.populations:
            population_table(cases, options.populations)
            continue
        medians = solver_table(cases)
        start_table(cases)
        transcription_table(cases[0], medians, options.generations)


def _machine() -> str:
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {len(models)} cores, {platform.system()}"


if __name__ == "__main__":
    main()

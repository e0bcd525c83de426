# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The cases in which alignment must matter, because the sites' neurons come in different orders.

    python benchmarks/cases.py                           # what is missing in the results: hours of two cores
    python benchmarks/cases.py --cases one_shot --seeds 0 --processes 1
    python benchmarks/cases.py --table                   # the tables of what is there, without a run
    python benchmarks/publish.py --write                 # the same and a picture of the barriers, in the docs

Every case is a job of its own, `jobs/cases/`. Its figures are mean accuracies of the sites' test
questions under their own heads: `trained`, after the training of the last round, and `exchanged`, after the exchange
that follows it, with what each site would go on from (with client PIA, the merged adapter). A run is one line of
`benchmarks/results/cases.jsonl`; what is there is not run again. What a site learns in its first round is the same
whatever the method, and is trained once for all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import barrier
import json_lines
import parallel
import study
from result_table import ResultTable
from rich.console import Console
from safetensors.torch import load_file, save_file

from fedpeft.compare.table import paired, signed
from fedpeft.core.states import State
from fedpeft.job.composing import compose
from fedpeft.server.aggregation import aggregate
from fedpeft.site import site_state
from fedpeft.site.learner import Learner, Update

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "cases.jsonl"
SEEDS = (0, 1, 2)
PIA = [
    "method.aggregation=pia",
    "method.pia.integration=weight_space",
    "method.pia.share=0.5",
    "method.pia.accept=false",
    "method.pia.client=true",
    "method.pia.reference=fedavg",
]
FIXED_POINT = "method.pia.reference=fixed_point"
LOCAL, FEDAVG, BOTH, BOTH_FIXED_POINT = "local", "FedAvg", "both", "both, fixed point"
MIXED = (BOTH, BOTH_FIXED_POINT)  # the methods that can run with unequal widths
METHODS: dict[str, list[str]] = {
    LOCAL: ["method.aggregation=none"],
    FEDAVG: ["method.aggregation=fedavg"],
    "half the own, not aligned": [*PIA, "method.pia.server=false", "method.pia.solver=identity"],
    "server PIA": [*PIA, "method.pia.client=false"],
    "server PIA, fixed point": [*PIA, "method.pia.client=false", FIXED_POINT],
    "client PIA": [*PIA, "method.pia.server=false"],
    "client PIA, accepted": [*PIA, "method.pia.server=false", "method.pia.accept=true"],
    "client PIA, accepted by place": [*PIA, "method.pia.server=false", "method.pia.accept=places"],
    BOTH: PIA,
    BOTH_FIXED_POINT: [*PIA, FIXED_POINT],
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case.

    Args:
        job: whose settings it has.
        overrides: settings that differ from the job's.
        compared: the round after whose training the loss between sites' adapters is taken.
    """

    job: str
    overrides: tuple[str, ...] = ()
    compared: int = 1


EQUAL = "fedpia_task1"
TWELVE = ("training.rounds=12", "training.local_epochs=1")
CASES = {
    "one_shot": Case(job="cases/one_shot"),
    "tuned_before": Case(job="cases/tuned_before"),
    "late_joiner": Case(job="cases/late_joiner", compared=9),
    "many_epochs": Case(job="cases/many_epochs"),
    "unequal_widths": Case(job="cases/unequal_widths", overrides=TWELVE, compared=12),
}


def sections_of(case: Case, method: str, seed: int, overrides: Sequence[str], site: str) -> dict[str, Any]:
    """One site's settings. Where widths differ, only PIA at both ends can run: with the other methods every site takes
    the narrowest, and alone each its own."""
    job, widths = case.job, _widths(case.job)
    common = ["training.validate=false", f"training.seed={seed}", f"data.seed={seed}"]
    chosen = [*case.overrides, *METHODS[method], *common]
    if widths and method not in MIXED:
        job, narrowest = EQUAL, max(widths.values())
        chosen.append(f"method.settings.houlsby.reduction_factor={widths[site] if method == LOCAL else narrowest}")
    return compose(ROOT / "app_configs", job, [*chosen, *overrides])


def _widths(job: str) -> dict[str, int]:
    """Reduction factor of every site, where a job has unequal ones."""
    sections = compose(ROOT / "app_configs", job)
    own, common = sections["method"].get("site_settings"), sections["method"]["settings"]["houlsby"]
    if not own:
        return {}
    return {site: {**common, **own.get(site, {})}["reduction_factor"] for site in sections["federation"]["sites"]}


def first_rounds(name: str, method: str, seed: int, overrides: Sequence[str], folder: Path) -> None:
    """Train the first round of every site, and keep its state and what it sends in a new folder, for `run`."""
    folder.mkdir()
    for site, learner in learners_of(name, method, seed, overrides, folder).items():
        update = learner.train_round(learner.schedule.first_round(site), {})
        save_file(dict(update.state), folder / f"{site}.safetensors")
        (folder / f"{site}.json").write_text(json.dumps({"samples": update.samples, "metrics": update.metrics}))


def learners_of(name: str, method: str, seed: int, overrides: Sequence[str], folder: Path) -> dict[str, Learner]:
    """Site -> its learner, whose state lies in a folder of its name."""
    case = CASES[name]
    sites = compose(ROOT / "app_configs", case.job)["federation"]["sites"]
    return {
        s: Learner.from_sections(sections_of(case, method, seed, overrides, s), site=s, folder=folder / s)
        for s in sites
    }


def run(name: str, method: str, seed: int, overrides: Sequence[str], first: Path) -> dict[str, Any]:
    """One federation: accuracy by site after training, in every round, and after the last exchange; and the lines.

    Args:
        name: of the case.
        method: of `METHODS`.
        seed: of data, initial values and order.
        overrides: further settings.
        first: the folder of `first_rounds` of the same case and seed.
    """
    case, began = CASES[name], time.monotonic()
    lines: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(first, folder, dirs_exist_ok=True)
        learners = learners_of(name, method, seed, overrides, Path(folder))
        state: State = {}
        rounds = []
        count = next(iter(learners.values())).training.rounds
        for number in range(1, count + 1):
            updates, state = exchange(learners, number, state)
            rounds.append(updates)
            if number == case.compared and method == (BOTH if name == "unequal_widths" else FEDAVG):
                lines = barrier.losses(learners, pairs_of(case, list(learners)), number)
        exchanged = {site: after(learner, count, state) for site, learner in learners.items()}
    return {
        "case": name,
        "method": method,
        "seed": seed,
        "overrides": list(overrides),
        "rounds": study.overall(rounds),
        "exchanged": study.overall([exchanged])[0],
        "lines": lines,
        "seconds": time.monotonic() - began,
    }


def exchange(learners: Mapping[str, Learner], number: int, state: State) -> tuple[dict[str, Any], State]:
    """Train one round, or take a site's first, and integrate: accuracy by site, and the new global adapter."""
    starts = {site: learner.schedule.first_round(site) for site, learner in learners.items()}
    updates = {
        site: _first(learners[site]) if number == start else learners[site].train_round(number, state)
        for site, start in starts.items()
        if start <= number
    }
    method = next(iter(learners.values())).method
    if method.exchanges:
        replies = {site: (update.state, update.samples) for site, update in updates.items()}
        state, _ = aggregate(replies, method, previous=state or None)
    return {site: update.metrics for site, update in updates.items()}, state


def _first(learner: Learner) -> Update:
    """What `first_rounds` kept of a site."""
    file = learner.folder.parent / f"{learner.folder.name}.safetensors"
    return Update(state=load_file(file), **json.loads(file.with_suffix(".json").read_text()))


def after(learner: Learner, round: int, state: State) -> dict[str, Any]:
    """Accuracy of what the site would start the next round from, under its own head."""
    own = site_state.load_before(learner.folder, round + 1)
    learner.values.restore(own, {}, folder=learner.folder)
    learner.integrate(round + 1, own.adapter if own else None, state)
    return learner.evaluate()


def pairs_of(case: Case, sites: Sequence[str]) -> list[tuple[str, str]]:
    """The sites whose adapters are compared: each with the next one, or the late one with the others."""
    if late := compose(ROOT / "app_configs", case.job).get("schedule", {}).get("joins"):
        return [pair for last in late for site in sites if site != last for pair in ((site, last), (last, site))]
    return list(zip(sites, [*sites[1:], sites[0]], strict=True))


def accuracy(metrics: Mapping[str, Mapping[str, float]]) -> float:
    """Mean of the sites, in percent."""
    return 100 * statistics.fmean(site["overall"] for site in metrics.values())


def tables(results: Sequence[Mapping[str, Any]]) -> Iterator[ResultTable]:
    """One table for each case: both accuracies, the latter's paired difference to FedAvg, and the barriers."""
    heads = ("method", "trained %", "exchanged %", "minus FedAvg, 95 %", "seeds")
    for name in (case for case in CASES if any(r["case"] == case for r in results)):
        mine = [result for result in results if result["case"] == name]
        yield ResultTable(name, heads, [*_accuracies(mine), *_barriers(mine)])


def _accuracies(results: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """A row for each method of one case."""
    fedavg = {r["seed"]: accuracy(r["exchanged"]) for r in results if r["method"] == FEDAVG}
    for method in METHODS:
        runs = [r for r in results if r["method"] == method]
        if not runs:
            continue
        last = {r["seed"]: accuracy(r["exchanged"]) for r in runs}
        pairs = paired(last, fedavg) if method != FEDAVG else []
        trained = statistics.fmean(accuracy(r["rounds"][-1]) for r in runs)
        difference = signed(pairs) if pairs else ""
        yield method, f"{trained:.1f}", f"{statistics.fmean(last.values()):.1f}", difference, str(len(runs))


def _barriers(results: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """A row for each order of neurons in which adapters of one case are compared: the barrier, a loss, of the mean line
    over the pairs of sites, as a mean over seeds."""
    heights: dict[str, list[float]] = {}
    for result in results:
        for name, line in result["lines"].items():
            heights.setdefault(name, []).append(barrier.barrier(line))
    for name, mine in heights.items():
        yield f"barrier, {name}", "", f"{statistics.fmean(mine):.3f}", "", str(len(mine))


def read(file: Path = RESULTS, overrides: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The runs of a file with these settings."""
    return [result for result in json_lines.read(file) if result["overrides"] == list(overrides)]


def run_all(runs: Sequence[tuple[str, str, int]], overrides: Sequence[str], processes: int) -> Iterator[dict[str, Any]]:
    """Run federations (case, method, seed) at the same time: first the first rounds that they share, then the rest."""
    with tempfile.TemporaryDirectory() as folder, parallel.processes(processes) as pool:
        firsts = {one: (first_of(*one), Path(folder) / "-".join(map(str, first_of(*one)))) for one in runs}
        for future in [pool.submit(first_rounds, *one, overrides, kept) for one, kept in set(firsts.values())]:
            future.result()
        for future in as_completed([pool.submit(run, *one, overrides, kept) for one, (_, kept) in firsts.items()]):
            yield future.result()


def first_of(name: str, method: str, seed: int) -> tuple[str, str, int]:
    """The run whose first round another one shares: with adapters of the same widths, and an exchange."""
    return name, BOTH if method in (*MIXED, LOCAL) and _widths(CASES[name].job) else FEDAVG, seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD", help="; ".join(METHODS)
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    parser.add_argument(
        "--processes", type=parallel.at_least_one, default=os.cpu_count() or 1, help="runs at the same time"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="a JSON line for each run; what is there is kept")
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    chosen = parser.parse_args()
    for name in chosen.cases:
        parallel.check_settings(parser, ROOT / "app_configs", CASES[name].job, chosen.set)
    console = Console(width=120)
    results = read(chosen.out, chosen.set)
    known = {(r["case"], r["method"], r["seed"]) for r in results}
    runs = [(case, method, seed) for seed in chosen.seeds for case in chosen.cases for method in chosen.methods]
    missing = [] if chosen.table else [one for one in runs if one not in known]
    done = 0
    for seed in chosen.seeds:
        for last in run_all([one for one in missing if one[2] == seed], chosen.set, chosen.processes):
            results.append(last)
            json_lines.append(chosen.out, last)
            done += 1
            figures = f"trained {accuracy(last['rounds'][-1]):.1f}, exchanged {accuracy(last['exchanged']):.1f} %"
            console.print(
                f"{done}/{len(missing)} {last['case']}, {last['method']}, seed {seed}: {figures} "
                f"({last['seconds']:.0f} s)",
                highlight=False,
            )
    for table in tables(results):
        console.print(table.table())


if __name__ == "__main__":
    main()

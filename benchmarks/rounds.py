# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A FedPIA round against a FedAvg round over the same adapters, in one process without FLARE.

    python benchmarks/rounds.py [--runs 5] [--full-size] [--set SECTION.NAME=VALUE]

All variants train the same sites on the same data, taken in turns site by site, so that a busy machine slows all alike.
`--full-size` takes a ViLT of full size with random weights, two sites, and VQA-RAD's proportions of probes to training
samples to test samples (64 : 1797 : 451), scaled down to a single probe.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from measured import machine, ratio, sections, show

from fedpeft.server.aggregation import aggregate
from fedpeft.site.learner import Learner

HALF = ["method.pia.share=0.5", "method.pia.accept=false"]
VARIANTS = {
    "FedAvg": ["method.aggregation=fedavg"],
    "FedPIA, weight space": HALF,
    "FedPIA, two_branches": [*HALF, "method.pia.integration=two_branches"],
}
FULL_SIZE = [
    "backbone.name=vilt",
    "federation.sites=[slake, vqa-rad]",
    "method.probe_samples=1",
    "data.train_size=28",
    "data.validation_size=1",
    "data.test_size=7",
]
Spent = tuple[float, float]


def clocked(run: Callable, *arguments: Any, **named: Any) -> tuple[Any, Spent]:
    """A call's result, its wall seconds and its CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = run(*arguments, **named)
    return result, (time.perf_counter() - wall, time.process_time() - cpu)


def save_full_size(folder: Path) -> None:
    """Write a ViLT-B/32 with random weights and a tokenizer of letters, in the layout of `dandelin/vilt-b32-mlm`."""
    import torch
    from transformers import BertTokenizerFast, ViltConfig, ViltModel

    torch.manual_seed(0)
    ViltModel(ViltConfig()).save_pretrained(folder)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789?'-.,"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    BertTokenizerFast(vocab={word: number for number, word in enumerate(words)}).save_pretrained(folder)


def measure(overrides: Iterable[str], runs: int, folder: Path) -> dict[str, list[tuple[Spent, Spent]]]:
    """Seconds of every counted round by variant: of one site (the mean over sites), and of the server.

    The first round is left out: no site has an adapter of its own yet, so FedPIA does what FedAvg does.
    """
    overrides = [*overrides, f"training.rounds={runs + 1}"]
    learners: dict[str, dict[str, Learner]] = {}
    for number, (variant, method) in enumerate(VARIANTS.items()):
        chosen = sections([*overrides, *method])
        learners[variant] = {
            site: Learner.from_sections(chosen, site=site, folder=folder / str(number) / site)
            for site in chosen["federation"]["sites"]
        }
    states: dict[str, dict | None] = dict.fromkeys(VARIANTS)
    spent: dict[str, list[tuple[Spent, Spent]]] = {variant: [] for variant in VARIANTS}
    for round in range(1, runs + 2):
        replies: dict[str, dict] = {variant: {} for variant in VARIANTS}
        at_sites: dict[str, list[Spent]] = {variant: [] for variant in VARIANTS}
        for site in learners["FedAvg"]:
            for variant in VARIANTS:
                update, seconds = clocked(learners[variant][site].train_round, round, states[variant] or {})
                replies[variant][site] = (update.state, update.samples)
                at_sites[variant].append(seconds)
        for variant in VARIANTS:
            method = next(iter(learners[variant].values())).method
            merged, at_server = clocked(aggregate, replies[variant], method, previous=states[variant])
            states[variant] = merged[0]
            if round > 1:
                sites = at_sites[variant]
                mean = tuple(sum(seconds[clock] for seconds in sites) / len(sites) for clock in (0, 1))
                spent[variant].append((mean, at_server))
    return spent


def report(spent: dict[str, list[tuple[Spent, Spent]]], title: str) -> dict[str, list[float]]:
    """Print one table and return each variant's paired ratios of CPU seconds."""
    ratios: dict[str, list[float]] = {}
    rows = []
    for variant, rounds in spent.items():
        totals = [tuple(site[clock] + server[clock] for clock in (0, 1)) for site, server in rounds]
        base = [tuple(site[clock] + server[clock] for clock in (0, 1)) for site, server in spent["FedAvg"]]
        wall, cpu = ([a[clock] / b[clock] for a, b in zip(totals, base, strict=True)] for clock in (0, 1))
        ratios[variant] = cpu
        middle = sorted(rounds, key=lambda parts: parts[0][0] + parts[1][0])[len(rounds) // 2]
        rows.append((variant, f"{middle[0][0]:.3f}", f"{middle[1][0]:.4f}", ratio(wall), ratio(cpu)))
    columns = ("round", "one site (s)", "server (s)", "round / FedAvg, wall", "round / FedAvg, CPU")
    count = len(spent["FedAvg"])
    show(
        title,
        columns,
        rows,
        f"One site and the server, of {count} rounds; ratios: median (least to greatest). Aim: 1.05.",
    )
    return ratios


def run(overrides: Iterable[str], runs: int, full_size: bool) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as scratch:
        chosen = list(overrides)
        if full_size:
            save_full_size(Path(scratch) / "vilt")
            chosen = [*FULL_SIZE, f"backbone.source={scratch}/vilt", *chosen]
        spent = measure(chosen, runs, Path(scratch))
    settings = sections(chosen)
    name = "ViLT-B/32 with random weights" if full_size else "tiny ViLT"
    title = f"A round over Houlsby adapters, {name}, {len(settings['federation']['sites'])} sites"
    report(spent, title)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="counted rounds")
    parser.add_argument(
        "--full-size", action="store_true", help="ViLT-B/32 with random weights, two sites, few samples"
    )
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    options = parser.parse_args()
    print(machine())
    run(options.set, options.runs, options.full_size)


if __name__ == "__main__":
    main()

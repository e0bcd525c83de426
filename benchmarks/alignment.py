# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What server-level PIA costs: seconds, where they go, and memory, beside plain FedAvg and POT's emd.

    python benchmarks/alignment.py                      10 clients, ViLT-B with Houlsby adapters (24 of 768 x 48)
    python benchmarks/alignment.py --clients 50 --threads 1

Every figure comes from one run; compare the ratios, not the seconds of different machines. Clients are random adapters
that drifted from a common start, in orders of their own, so that every plan has to be found. Where the table says so
they are in one order, as sites that go on from one global adapter are, or unrelated, each from a start of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import ot
import torch

from fedpeft.alignment import PIASettings, common_order, integration, permutation, transport
from fedpeft.alignment.integration import integrate

State = dict[str, torch.Tensor]
PARTS = {
    "checks": (integration, "check_round"),
    "costs": (transport, "cost_matrix"),
    "assignment": (transport, "match"),
    "common order": (common_order, "common_order"),
    "moving neurons": (permutation, "_carry"),
    "weighted sums": (integration, "weighted_mean"),
    "distances": (integration, "distance_of"),
}
OWN_ORDER, ONE_ORDER, OWN_START, UNEQUAL = "own order", "one order", "own start", "half as wide"
FIXED_POINT = {"reference": "fixed_point"}
VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "FedAvg": ({"server": False}, OWN_ORDER),
    "PIA, one pass": ({}, OWN_ORDER),
    "PIA, reference=largest": ({"reference": "largest"}, OWN_ORDER),
    "PIA, fixed point": (FIXED_POINT, OWN_ORDER),
    "PIA, one pass, sites in one order": ({}, ONE_ORDER),
    "PIA, fixed point, sites in one order": (FIXED_POINT, ONE_ORDER),
    "PIA, one pass, unrelated sites": ({}, OWN_START),
    "PIA, fixed point, unrelated sites": (FIXED_POINT, OWN_START),
    "PIA, half of the sites half as wide": ({}, UNEQUAL),
    "PIA, solver=sinkhorn": ({"solver": "sinkhorn"}, OWN_ORDER),
}


def clients(options: argparse.Namespace, kind: str = OWN_ORDER) -> list[State]:
    """Adapters of all clients: one start, drifted by a tenth of its scale, in their own order; float32 wire form.

    Other kinds: in one order; from a start of their own; every second one half as wide.
    """
    rng = torch.Generator().manual_seed(options.seed)
    states: list[State] = [{} for _ in range(options.clients)]
    for place in (f"layer.{layer}.{site}" for layer in range(options.layers) for site in ("attention", "output")):
        shapes = {"down.weight": (options.width, options.hidden), "down.bias": (options.width,)}
        shapes |= {"up.weight": (options.hidden, options.width), "up.bias": (options.hidden,)}
        start = {name: 0.02 * torch.randn(shape, generator=rng) for name, shape in shapes.items()}
        for k, state in enumerate(states):
            width = options.width // 2 if kind == UNEQUAL and k % 2 else options.width
            order = torch.randperm(options.width, generator=rng)[:width]
            if kind == ONE_ORDER:
                order = torch.arange(width)
            for name, tensor in start.items():
                scale = 0.02 if kind == OWN_START else 0.002
                drifted = (0 if kind == OWN_START else tensor) + scale * torch.randn(tensor.shape, generator=rng)
                axis = {"down.weight": 0, "down.bias": 0, "up.weight": 1}.get(name)
                state[f"{place}.{name}"] = drifted if axis is None else drifted.index_select(axis, order)
    return states


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def medians(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each, taken in turns so that a busy machine slows all alike; the first turn does not count."""
    taken = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            spent = seconds(run)
            if turn:
                taken[name].append(spent)
    return {name: statistics.median(values) for name, values in taken.items()}


def split(states: list[State], counts: list[int], repeats: int, settings: PIASettings) -> dict[str, float]:
    """Median seconds that one round spends in each part, by wrapping the functions that do them."""
    spent: dict[str, list[float]] = {name: [] for name in [*PARTS, "everything else"]}
    for _ in range(repeats):
        clock = dict.fromkeys(PARTS, 0.0)
        originals = {name: getattr(module, function) for name, (module, function) in PARTS.items()}

        def timed(name: str, original: Callable, clock: dict[str, float] = clock) -> Callable:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                start = time.perf_counter()
                try:
                    return original(*args, **kwargs)
                finally:
                    clock[name] += time.perf_counter() - start

            return wrapper

        for name, (module, function) in PARTS.items():
            setattr(module, function, timed(name, originals[name]))
        try:
            whole = seconds(lambda: integrate(states, counts, settings))
        finally:
            for name, (module, function) in PARTS.items():
                setattr(module, function, originals[name])
        for name, value in clock.items():
            spent[name].append(value)
        spent["everything else"].append(whole - sum(clock.values()))
    return {name: statistics.median(values) for name, values in spent.items()}


def costs_of_a_round(states: list[State], counts: list[int]) -> list[torch.Tensor]:
    """The cost matrices of one PIA round."""
    costs: list[torch.Tensor] = []
    original = transport.match

    def keep(cost: torch.Tensor, *args: Any, **kwargs: Any) -> transport.Matching:
        costs.append(cost)
        return original(cost, *args, **kwargs)

    transport.match = keep
    try:
        integrate(states, counts)
    finally:
        transport.match = original
    return costs


def peak_memory(name: str, options: argparse.Namespace) -> tuple[int, int]:
    """Bytes of all clients' adapters, and how far a round raises the peak of a fresh process that holds them.

    A process inherits the peak of the one that starts it: call this before this process holds any adapters.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_raised_peak, (name, options))


def _raised_peak(name: str, options: argparse.Namespace) -> tuple[int, int]:
    torch.set_num_threads(options.threads)
    settings, kind = VARIANTS[name]
    small = argparse.Namespace(**{**vars(options), "layers": 1, "width": 4, "hidden": 16})
    integrate(clients(small, kind), [1] * options.clients, PIASettings(**settings))  # loads the libraries
    states = clients(options, kind)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    integrate(states, [1] * options.clients, PIASettings(**settings))
    raised = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return sum(tensor.nbytes for state in states for tensor in state.values()), raised * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    print(f"{platform.platform()}, {os.cpu_count()} cores, torch {torch.__version__}, POT {ot.__version__}")
    print(
        f"{options.clients} clients, {2 * options.layers} adapters of {options.hidden} x {options.width}, "
        f"{options.threads} torch threads, medians of {options.repeats} turns\n"
    )
    memory = {name: peak_memory(name, options) for name in VARIANTS}
    counts = [100 + k for k in range(options.clients)]
    states = {kind: clients(options, kind) for kind in (OWN_ORDER, ONE_ORDER, OWN_START, UNEQUAL)}
    runs = {
        name: lambda settings=settings, kind=kind: integrate(states[kind], counts, PIASettings(**settings))
        for name, (settings, kind) in VARIANTS.items()
    }
    times = medians(runs, options.repeats)
    print(f"{'server, one round':<38}{'seconds':>9}{'/ FedAvg':>10}{'peak MiB beyond the clients':>30}")
    for name, value in times.items():
        held, raised = memory[name]
        print(f"{name:<38}{value:>9.3f}{value / times['FedAvg']:>10.2f}{raised / 2**20:>17.1f} of {held / 2**20:.1f}")

    parts = {
        "one pass": split(states[OWN_ORDER], counts, options.repeats, PIASettings()),
        "fixed point": split(states[OWN_ORDER], counts, options.repeats, PIASettings(**FIXED_POINT)),
    }
    print(f"\n{'where a round goes, seconds':<38}" + "".join(f"{name:>14}" for name in parts))
    for part in (*PARTS, "everything else"):
        print(f"{part:<38}" + "".join(f"{of[part]:>14.3f}" for of in parts.values()))

    costs = costs_of_a_round(states[OWN_ORDER], counts)
    solved = {
        "assignment": lambda: [transport.match(cost) for cost in costs],
        "POT emd": lambda: [ot.emd([], [], cost.numpy()) for cost in costs],
    }
    times = medians(solved, options.repeats)
    print(f"\n{f'plans of the {len(costs)} costs of that round':<38}{'seconds':>9}{'/ POT':>10}")
    for name, value in times.items():
        print(f"{name:<38}{value:>9.3f}{value / times['POT emd']:>10.2f}")
    gaps = [
        abs(transport.match(cost).distance(cost) / ot.emd2([], [], cost.numpy()) - 1)  #
        for cost in costs
    ]
    print(f"largest relative difference in cost: {max(gaps):.1e}")


if __name__ == "__main__":
    main()

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What is lost when each site aligns to the last global adapter, instead of the server to the mean of the round.

    python benchmarks/anchor.py                  # all parts, three seeds
    python benchmarks/anchor.py --parts drift    # seconds: random adapters, no training

`drift` merges adapters that moved from a common one and whose true correspondence is known. `own` and `shared` train
the embedded federation: from a seed of its own for every site and without client PIA, or from one adapter and with
client PIA.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import learning
import study
import torch
from measured import machine, show

from fedpeft.alignment import PIASettings, align_upload, integrate
from fedpeft.compare.table import signed

SITES, WIDTH, HIDDEN, PLACE = 5, 24, 96, "layer.0.output"
AXES = {"down.weight": 0, "down.bias": 0, "up.weight": 1}
DRIFTS = (0.1, 1, 2, 4, 8)
AT_SERVER = {
    "FedAvg": PIASettings(server=False),
    "server, mean as reference": PIASettings(gamma=0),
    "server, largest site as reference": PIASettings(gamma=0, reference="largest"),
}
AT_SITE = PIASettings(aligned_at="site")
OWN = ("fedavg", "fedpia, server only", "fedpia, no client PIA, aligned at the site")
PARTS = ("drift", "own", "shared")
SHARED = (study.WEIGHT_SPACE, "fedpia, aligned at the site")
State = dict[str, torch.Tensor]


def random_adapter(rng: torch.Generator, scale: float) -> State:
    """One Houlsby adapter with independent normal weights."""
    shapes = {"down.weight": (WIDTH, HIDDEN), "down.bias": (WIDTH,), "up.weight": (HIDDEN, WIDTH), "up.bias": (HIDDEN,)}
    return {f"{PLACE}.{name}": scale * torch.randn(shape, generator=rng) for name, shape in shapes.items()}


def shuffled(state: State, rng: torch.Generator) -> State:
    """The same function with its neurons in a random order."""
    order = torch.randperm(WIDTH, generator=rng)
    axes = {f"{PLACE}.{name}": axis for name, axis in AXES.items()}
    return {key: tensor.index_select(axes[key], order) if key in axes else tensor for key, tensor in state.items()}


def output(state: State, inputs: torch.Tensor) -> torch.Tensor:
    """What the adapter adds to the residual stream: (m, d) -> (m, d)."""
    down, bias, up, shift = (state[f"{PLACE}.{name}"] for name in ("down.weight", "down.bias", "up.weight", "up.bias"))
    return torch.nn.functional.silu(inputs @ down.T + bias) @ up.T + shift


def drift_errors(drift: float, seed: int) -> dict[str, float]:
    """Relative error of the merged adapter's output against the mean in the true order, by way of merging.

    Half of the drift is common to all sites, as that of one training step is, half is a site's own.
    """
    rng = torch.Generator().manual_seed(seed)
    anchor, common = random_adapter(rng, 1.0), random_adapter(rng, drift / 2**0.5)
    true = []
    for _ in range(SITES):
        own = random_adapter(rng, drift / 2**0.5)
        true.append({key: anchor[key] + common[key] + own[key] for key in anchor})
    counts = [100 + k for k in range(SITES)]
    inputs = torch.randn(256, HIDDEN, generator=rng) / HIDDEN**0.5
    mean, _ = integrate(true, counts, PIASettings(server=False))
    target = output(mean, inputs)
    sent = [shuffled(state, rng) for state in true]
    merged = {name: integrate(sent, counts, settings)[0] for name, settings in AT_SERVER.items()}
    aligned = [align_upload(state, anchor, AT_SITE) for state in sent]
    merged["sites, last global adapter"] = integrate(aligned, counts, AT_SITE)[0]
    return {
        name: float((output(state, inputs) - target).norm() / target.norm())  #
        for name, state in merged.items()
    }


def show_drift(seeds: Sequence[int]) -> None:
    """Print the errors by drift, mean over seeds."""
    cells: dict[str, list[str]] = {}
    for drift in DRIFTS:
        errors = [drift_errors(drift, seed) for seed in seeds]
        for name in errors[0]:
            cells.setdefault(name, []).append(f"{statistics.fmean(e[name] for e in errors):.3f}")
    show(
        "Error of the merged adapter when every site has an order of its own",
        ["aligned by", *(f"drift {drift:g}" for drift in DRIFTS)],
        [[name, *row] for name, row in cells.items()],
        f"relative error of the output against the mean in the true order; drift of the weights since the last global "
        f"adapter, in units of their own scale; {SITES} sites, {WIDTH} neurons, {len(seeds)} seeds",
    )


def show_learning(title: str, methods: Sequence[str], seeds: Sequence[int], overrides: Sequence[str]) -> None:
    """Train the embedded federation and print the last round's accuracy, and paired differences with 95 % intervals."""
    scores: dict[str, list[float]] = {}
    seconds = 0.0
    for method in methods:
        runs: list[dict[str, Any]] = [learning.run(method, seed, overrides) for seed in seeds]
        scores[method] = [learning.overall(run) for run in runs]
        seconds += sum(run["seconds"] for run in runs)
    rows = []
    for method, values in scores.items():
        against = [[a - b for a, b in zip(values, scores[other], strict=True)] for other in methods[:-1]]
        cells = ["" if method == other else signed(gaps) for other, gaps in zip(methods[:-1], against, strict=True)]
        rows.append([method, f"{statistics.fmean(values):.1f}", learning.spread(values), *cells])
    note = f"{len(seeds)} seeds ({', '.join(map(str, seeds))}); {' '.join(overrides)}; {seconds:.0f} s in all"
    show(title, ["method", "accuracy %", "sd", *(f"minus {name}" for name in methods[:-1])], rows, note)


def main() -> None:
    """Read the command line and print both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine(), flush=True)
    if "drift" in options.parts:
        show_drift(options.seeds)
    rounds = f"training.rounds={options.rounds}"
    if "own" in options.parts:
        own = ["method.initialization=own", rounds]
        show_learning("Without client PIA; every site starts from a seed of its own", OWN, options.seeds, own)
    if "shared" in options.parts:
        show_learning("With client PIA; all sites start from one adapter", SHARED, options.seeds, [rounds])


if __name__ == "__main__":
    main()

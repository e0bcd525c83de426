# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How far a round moves the global adapter in each form of FedPIA, as a share of how far FedAvg moves it.

    python benchmarks/movement.py [--seeds 0 1 2] [--rounds 2]

The shares that the algebra of docs/fedpia.md gives, measured: the embedded federation, one epoch a round, all from one
adapter and at one rate that does not decay. Nothing is permuted, so that the forms differ by their integration alone.
The first rounds tell: later ones start from another adapter in each form.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import learning
import torch
from measured import machine, sections, show

from fedpeft.federate import federate
from fedpeft.site.learner import Learner
from fedpeft.site.site_model import SharedModels

STILL = [*learning.PIA, "method.pia.solver=identity"]
ROWS = {
    "FedAvg": ["method.aggregation=fedavg"],
    **{form: [*STILL, f"method.pia.integration={form}"] for form in ("weight_space", "two_branches", "frozen_half")},
}
OPTIMIZERS = {"adamw": "5e-3", "sgd": "0.5"}  # with the learning rate


def lengths(settings: Sequence[str]) -> list[float]:
    """How far each round moves the global adapter: the length of the difference of all its numbers."""
    job = sections([*settings, learning.UNVALIDATED, "training.local_epochs=1", "training.decay=none"])
    with tempfile.TemporaryDirectory() as folder:
        sites, shared = job["federation"]["sites"], SharedModels()
        learners = {s: Learner.from_sections(job, site=s, folder=Path(folder) / s, shared=shared) for s in sites}
        states = [learners[sites[0]].first_state(), *(result.state for result in federate(learners))]
    whole = [torch.cat([state[key].float().flatten() for key in sorted(states[-1])]) for state in states]
    return [float((after - before).norm()) for before, after in itertools.pairwise(whole)]


def main() -> None:
    """Print a row for each form and optimizer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for optimizer, rate in OPTIMIZERS.items():
        common = [f"training.optimizer={optimizer}", f"training.learning_rate={rate}"]
        common += [f"training.rounds={options.rounds}"]
        shares: dict[str, list[list[float]]] = {}
        for seed in options.seeds:
            own = [*common, f"training.seed={seed}", f"data.seed={seed}"]
            moved = {name: lengths([*settings, *own]) for name, settings in ROWS.items()}
            for name, of_rounds in moved.items():
                parts = [one / whole for one, whole in zip(of_rounds, moved["FedAvg"], strict=True)]
                shares.setdefault(name, []).append(parts)
        for name, by_seed in shares.items():
            cells = [
                f"{statistics.fmean(one):.2f} ({min(one):.2f} to {max(one):.2f})" for one in zip(*by_seed, strict=True)
            ]
            rows.append([optimizer, name, *cells])
    heads = ["optimizer", "form", *(f"round {number + 1}" for number in range(options.rounds))]
    note = f"mean of {len(options.seeds)} seeds (smallest to largest); learning rates {OPTIMIZERS}"
    show("How far a round moves the global adapter, as a share of FedAvg", heads, rows, note)
    print(machine())


if __name__ == "__main__":
    main()

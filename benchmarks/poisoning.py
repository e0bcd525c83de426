# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One of five sites poisons what it sends, round after round: what is left of the others' accuracy with each average.

    python benchmarks/attacks.py --poisoning [--seeds 0 1] [--set SECTION.NAME=VALUE]

The same federation in one process, without FLARE: same data, steps and seeds, procedural data, tiny backbone. What the
poisoner sends starts from what it trained; the accuracy is the mean over the four honest sites' test splits.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from measured import machine, sections, show

from fedpeft.client.learner import Learner
from fedpeft.federate import federate
from fedpeft.seeds import derive

POISONER = "vqa-rad"
SMALL = (
    "training.rounds=3",
    "data.train_size=48",
    "data.validation_size=4",
    "data.test_size=40",
    "method.probe_samples=16",
)
FEDAVG = ("method.aggregation=fedavg",)
HALF = ("method.pia.share=0.5", "method.pia.accept=false")  # a robust average needs a number as share
OPEN = "method.robust.update_factor=0"  # no update is refused for its length
DEFENSES: dict[str, Sequence[str]] = {
    "FedAvg, mean, no limit": (*FEDAVG, OPEN),
    "FedAvg, mean (the default)": FEDAVG,
    **{
        f"FedAvg, {rule}, no limit": (*FEDAVG, OPEN, f"method.robust.average={rule}")
        for rule in ("median", "geometric_median", "trimmed_mean", "krum", "multi_krum")
    },
    "FedPIA, mean, no limit": (*HALF, OPEN),
    "FedPIA, median, no limit": (*HALF, OPEN, "method.robust.average=median"),
}
State = dict[str, torch.Tensor]


def _noise(sent: State, start: State, generator: torch.Generator) -> State:
    return {key: tensor + torch.randn(tensor.shape, generator=generator) for key, tensor in sent.items()}


def _sign_flips(sent: State, start: State, generator: torch.Generator) -> State:
    return {key: start[key] - 5 * (tensor - start[key]) for key, tensor in sent.items()}


def _scaled(sent: State, start: State, generator: torch.Generator) -> State:
    return {key: start[key] + 100 * (tensor - start[key]) for key, tensor in sent.items()}


ATTACKS: dict[str, Callable[[State, State, torch.Generator], State]] = {
    "nothing": lambda sent, start, generator: sent,
    "noise of 1": _noise,
    "its change times -5": _sign_flips,
    "its change times 100": _scaled,
}


class Poisoner:
    """A learner that changes what it sends; everything else is that of the learner."""

    def __init__(self, learner: Learner, attack: str) -> None:
        self._learner, self._attack = learner, ATTACKS[attack]
        self._first = learner.trainable.state()

    def __getattr__(self, name: str) -> object:
        return getattr(self._learner, name)

    def train_round(self, round: int, received: State, layers: Sequence[int] | None = None, *, part: float = 0.0):
        """Train as told, then spoil the upload."""
        update = self._learner.train_round(round, received, layers, part=part)
        generator = torch.Generator().manual_seed(derive(self._learner.training.seed, "poison", round))
        return replace(update, state=self._attack(update.state, received or self._first, generator))


def accuracy(attack: str, overrides: Iterable[str], seed: int) -> tuple[float | None, int]:
    """Mean accuracy of the honest sites after the last round (None: training diverged), and refused updates."""
    job = sections([*SMALL, *overrides, f"training.seed={seed}"])
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        learners: dict[str, Learner | Poisoner] = {
            site: Learner.from_sections(job, site=site, folder=Path(folder) / site)
            for site in job["federation"]["sites"]
        }
        learners[POISONER] = Poisoner(learners[POISONER], attack)
        try:
            for result in federate(learners):
                refused += len(result.refused)
        except ValueError:  # FedpeftError: a loss or the global adapter is not finite any more
            return None, refused
    honest = [update.metrics["overall"] for site, update in result.updates.items() if site != POISONER]
    return statistics.mean(honest), refused


def run(overrides: Iterable[str], seeds: Sequence[int]) -> None:
    """Measure and print the table."""
    torch.set_num_threads(1)
    print(machine(), flush=True)
    began, rows = time.monotonic(), []
    for name, defense in DEFENSES.items():
        cells = []
        for attack in ATTACKS:
            measured = [accuracy(attack, [*defense, *overrides], seed) for seed in seeds]
            values, refused = [value for value, _ in measured if value is not None], sum(count for _, count in measured)
            text = f"{100 * statistics.mean(values):.1f}" if len(values) == len(measured) else "diverged"
            cells.append(text + (f" ({refused} refused)" if refused else ""))
        rows.append((name, *cells))
        print(*rows[-1], sep=" | ", flush=True)
    show(
        "Accuracy of the four honest sites (%), the fifth sends instead of its update:",
        ("average", *ATTACKS),
        rows,
        f"seeds {', '.join(map(str, seeds))}; 3 rounds, 48 training samples a site; no limit: update_factor 0; "
        f"{time.monotonic() - began:.0f} s",
    )

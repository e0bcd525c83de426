# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How far cheaper kernels agree with the kernel of all outputs, at the sites of the embedded federation.

    python benchmarks/score_agreement.py

After 0, 1, 3 and 6 rounds of FedAvg with Houlsby adapters, every site scores its twelve layers on 16 training samples.
Printed are, over sites and rounds: Spearman's rank correlation with the exact scores, how many of the exact four best
layers are among the four best, and half the sum of absolute differences of the scores, which sum to 1.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import nn

from fedpeft.federate import federate
from fedpeft.job.composing import compose
from fedpeft.site.learner import Learner

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = (0, 1, 3, 6)
BEST = 4
TRAINING = (
    "method.aggregation=fedavg",
    "training.learning_rate=5e-3",
    "training.local_epochs=1",
    f"training.rounds={ROUNDS[-1]}",
)
KERNELS: dict[str, dict[str, Any]] = {
    "loss": {},
    "1 direction": {"target": "logits", "directions": 1},
    **{f"{count} directions": {"target": "logits", "directions": count} for count in (2, 4, 8, 16)},
}
EXACT = {"target": "logits"}
RANDOM = 8  # random combinations of logits, the same for all samples


def compared(learners: Mapping[str, Learner], done: int) -> Iterator[tuple[str, list[float]]]:
    """Kernel and its three figures at every site, with the model as it stands after so many rounds."""
    for learner in learners.values():
        exact = scores(learner, EXACT, done)
        kernels = {name: scores(learner, settings, done) for name, settings in KERNELS.items()}
        kernels[f"{RANDOM} at random"] = random_scores(learner, done)
        for name, found in kernels.items():
            shared = set(np.argsort(-exact)[:BEST]) & set(np.argsort(-found)[:BEST])
            yield name, [float(spearmanr(exact, found)[0]), len(shared), float(np.abs(exact - found).sum() / 2)]


def scores(learner: Learner, settings: Mapping[str, Any], done: int) -> np.ndarray:
    """Scores of a site's layers by one kernel."""
    learner.schedule = replace(learner.schedule, score="lntk", score_settings=settings)
    return np.array(learner.score_trained(done + 1))


def random_scores(learner: Learner, done: int) -> np.ndarray:
    """Scores by the kernel of a few random orthonormal combinations of logits."""
    head, classes = learner.answering.head, len(learner.vocabulary)
    combine = nn.Linear(classes, RANDOM, bias=False)
    generator = torch.Generator().manual_seed(done)
    combine.weight.data = torch.linalg.qr(torch.randn(classes, RANDOM, generator=generator))[0].T
    learner.answering.head = nn.Sequential(head, combine)
    try:
        return scores(learner, EXACT, done)
    finally:
        learner.answering.head = head


def main() -> None:
    sections = compose(ROOT / "app_configs", "fedpia_task1", TRAINING)
    figures: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        sites = sections["federation"]["sites"]
        learners = {s: Learner.from_sections(sections, site=s, folder=Path(folder) / s) for s in sites}
        rounds = federate(learners)
        for done in range(ROUNDS[-1] + 1):
            if done:
                next(rounds)
            if done in ROUNDS:
                for name, values in compared(learners, done):
                    figures.setdefault(name, []).append(values)
    print(f"{len(sites)} sites, after {', '.join(map(str, ROUNDS))} rounds: kernels beside that of all logits\n")
    print(f"{'kernel':<16}{'rank correlation':>18}{'lowest':>9}{f'best {BEST} shared':>16}{'differences':>13}")
    for name, values in figures.items():
        ranks, shared, apart = zip(*values, strict=True)
        print(
            f"{name:<16}{statistics.fmean(ranks):>18.2f}{min(ranks):>9.2f}{statistics.fmean(shared):>16.1f}"
            f"{statistics.fmean(apart):>13.3f}"
        )


if __name__ == "__main__":
    main()

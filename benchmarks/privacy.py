# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a guarantee costs: accuracy on the embedded federation against the epsilon of one site's whole data set.

    python benchmarks/privacy.py                       # the table of docs/privacy.md
    python benchmarks/privacy.py --noise 0.02 --seeds 0 1 2

FedAvg over adapters; every site clips its update and adds its noise, as `AdapterOnly` does, in every round; where only
two layers are sent, the layer scores are released the same way and counted. Below the line "nothing leaves", taking
part costs a site more than it brings. Procedural data, tiny backbone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from measured import machine, sections, show

from fedpeft.core.errors import FedpeftError
from fedpeft.federate import federate
from fedpeft.protocol import PrivacySettings, epsilon, release_adapter, release_scores
from fedpeft.site.learner import Learner, Update

DELTA = 1e-5
CLIP = 1.0
SCORE_CLIP = 1.0
NOISE = (0.0003, 0.001, 0.003, 0.01, 1.0)
TWO_LAYERS = ["schedule.solver=own", "schedule.score=lntk", "schedule.budget=2"]
PLAIN = {"nothing leaves": ["method.aggregation=none"], "FedAvg": []}


class PrivateLearner(Learner):
    """A learner whose uploads are clipped and noised."""

    privacy: PrivacySettings
    norms: list[float]
    numbers: int
    noise: np.random.Generator

    def train_round(
        self, round: int, received: dict, layers: Sequence[int] | None = None, *, part: float = 0.0
    ) -> Update:
        """As a learner does; what it would upload is released in place of it."""
        update = super().train_round(round, received, layers, part=part)
        state, norm = release_adapter(update.state, received or self.values.first, self.privacy, self.noise.bytes)
        self.norms.append(norm)
        self.numbers = sum(tensor.numel() for tensor in state.values())
        return dataclasses.replace(update, state=state)

    def score_layers(self, round: int, received: dict) -> list[float]:
        """As a learner does; the scores are released in place of them."""
        return release_scores(super().score_layers(round, received), self.privacy, self.noise.bytes)


def run(label: str, overrides: Sequence[str], privacy: PrivacySettings | None, seed: int) -> dict[str, Any]:
    """One federation: mean accuracy after the last round, and the norms of the updates before they were clipped."""
    common = ["method.aggregation=fedavg", f"training.seed={seed}", f"data.seed={seed}"]
    chosen = sections([*common, *overrides])
    with tempfile.TemporaryDirectory() as folder:
        learners = {}
        for number, site in enumerate(chosen["federation"]["sites"]):
            kind = PrivateLearner if privacy else Learner
            learners[site] = learner = kind.from_sections(chosen, site=site, folder=Path(folder) / site)
            if privacy:
                learner.privacy, learner.norms, learner.numbers = privacy, [], 0
                learner.noise = np.random.default_rng((seed, number))
        accuracy = None
        with contextlib.suppress(FedpeftError):  # the noise made a site's training diverge
            *_, last = federate(learners)
            accuracy = 100 * statistics.fmean(update.metrics["overall"] for update in last.updates.values())
    norms = [norm for learner in learners.values() for norm in getattr(learner, "norms", [])]
    rounds = chosen["training"]["rounds"]
    return {
        "label": label,
        "privacy": privacy,
        "releases": rounds * (2 if chosen["schedule"].get("solver") else 1),
        "accuracy": accuracy,
        "norm": statistics.median(norms) if norms else None,
        "numbers": max((getattr(learner, "numbers", 0) for learner in learners.values()), default=0),
    }


def rows(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A row for each setting, its accuracies averaged over seeds."""
    table: dict[tuple, list[dict[str, Any]]] = {}
    for result in results:
        table.setdefault((result["label"], result["privacy"]), []).append(result)
    cells = []
    for (label, privacy), found in sorted(table.items(), key=lambda item: _order(*item[0])):
        first = found[0]
        noisy = privacy is not None and privacy.noise > 0
        spent = epsilon([privacy.noise] * first["releases"], DELTA) if noisy else None
        cells.append(
            [
                label,
                f"{privacy.noise:g}" if privacy else "",
                "0" if label == "nothing leaves" else f"{spent:.3g}" if spent else "infinite",
                f"{first['numbers']:,}" if privacy else "",
                f"{statistics.median(one['norm'] for one in found):.1f}" if privacy else "",
                f"{privacy.deviation * first['numbers'] ** 0.5:.3g}" if privacy else "",
                _mean([one["accuracy"] for one in found]),
            ]
        )
    return cells


def _mean(accuracies: Sequence[float | None]) -> str:
    kept = [accuracy for accuracy in accuracies if accuracy is not None]
    lost = len(accuracies) - len(kept)
    return (f"{statistics.fmean(kept):.1f}" if kept else "") + (f" ({lost} diverged)" if lost else "")


def _order(label: str, privacy: PrivacySettings | None) -> tuple:
    return (label != "nothing leaves", label, privacy.noise if privacy else 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", nargs="+", type=float, default=list(NOISE), help="standard deviation / sensitivity")
    parser.add_argument("--clip", type=float, default=CLIP)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change one setting")
    parser.add_argument("--processes", type=int, default=2, help="runs at the same time")
    chosen = parser.parse_args()
    where, began = machine(), time.monotonic()
    settings = [
        PrivacySettings(clip=chosen.clip, noise=noise, score_clip=SCORE_CLIP, score_noise=noise, delta=DELTA)
        for noise in (0.0, *chosen.noise)
    ]
    runs = [(label, [*overrides, *chosen.set], None) for label, overrides in PLAIN.items()]
    runs += [("FedAvg, clipped", chosen.set, one) for one in settings]
    runs += [("FedAvg, clipped, 2 of 12 layers", [*TWO_LAYERS, *chosen.set], one) for one in settings]
    with ProcessPoolExecutor(chosen.processes) as pool:
        futures = [pool.submit(run, *one, seed) for seed in chosen.seeds for one in runs]
        results = []
        for future in as_completed(futures):
            results.append(future.result())
            print(f"{len(results)}/{len(futures)} {results[-1]['label']}", flush=True)
    show(
        f"Accuracy against epsilon at delta {DELTA:g}, clip {chosen.clip:g}, mean over sites after the last round",
        ("what leaves", "noise", "epsilon", "numbers", "norm", "noise norm", "accuracy %"),
        rows(results),
        f"norm: median L2 norm of an update before clipping; noise norm: expected L2 norm of the noise on it; "
        f"seeds {', '.join(map(str, chosen.seeds))}; {time.monotonic() - began:.0f} s\n{where}",
    )


if __name__ == "__main__":
    main()

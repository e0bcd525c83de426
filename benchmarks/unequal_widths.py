# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""By how much alignment to another width changes the function of an adapter.

    python benchmarks/unequal_widths.py

The sites of `cases/unequal_widths`, with adapters of 12, 24 and 48 neurons, train one round. Each one's adapter is then
aligned to that of every site of another width, and both run on the inputs that the adapters have on the site's probe
samples. Printed is ||aligned - own|| / ||own|| over a place's outputs: mean, least and greatest of sites, places and
seeds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import torch
from cases import CASES, MIXED, sections_of
from measured import machine

from fedpeft.alignment import PIASettings, align_global
from fedpeft.core.keys import group_by_place
from fedpeft.core.states import State
from fedpeft.methods.bottleneck.layer import BottleneckLayer
from fedpeft.site.learner import Learner

CASE = CASES["unequal_widths"]
SUPPORTS = {"weights": "weights", "samples": "activations"}


def trained(seed: int, folder: Path) -> tuple[dict[str, Learner], dict[str, State]]:
    """The sites after one round, and what each would send."""
    sites = sections_of(CASE, MIXED[0], seed, (), "slake")["federation"]["sites"]
    learners = {
        site: Learner.from_sections(sections_of(CASE, MIXED[0], seed, (), site), site=site, folder=folder / site)
        for site in sites
    }
    return learners, {site: learner.train_round(1, {}).state for site, learner in learners.items()}


@torch.no_grad()
def changes(learner: Learner, own: State, aligned: State) -> list[float]:
    """The relative change of each place's outputs on the site's probe samples."""
    layers = [m for m in learner.backbone.modules() if isinstance(m, BottleneckLayer)]
    sums: dict[str, list[float]] = {layer.place: [0.0, 0.0] for layer in layers}
    pairs = {}
    for layer in layers:
        keys = group_by_place(own)[layer.place]
        pairs[layer.place] = [
            layer.probe("default", {name: state[key] for name, key in keys.items()}, {}) for state in (own, aligned)
        ]

    def compare(layer: BottleneckLayer, result: torch.Tensor) -> None:
        before, after = (adapter(result) for adapter in pairs[layer.place])
        sums[layer.place][0] += float((after - before).square().sum())
        sums[layer.place][1] += float(before.square().sum())

    hooks = [
        layer.base_layer.register_forward_hook(lambda module, args, result, layer=layer: compare(layer, result))
        for layer in layers
    ]
    learner.backbone.eval()
    for batch in learner.probe(1):
        learner.backbone(**batch.inputs)
    for hook in hooks:
        hook.remove()
    return [(difference / whole) ** 0.5 for difference, whole in sums.values()]


def measured(seed: int) -> dict[tuple[int, int, str], list[float]]:
    """(own width, other width, support) -> relative changes of one seed."""
    found: dict[tuple[int, int, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        learners, states = trained(seed, Path(folder))
        for site, own in states.items():
            learner = learners[site]
            learner.trainable.load(own)
            inputs = [batch.inputs for batch in learner.probe(1)]
            for other in states.values():
                widths = tuple(next(t.shape[0] for key, t in s.items() if "down" in key) for s in (own, other))
                if widths[0] != widths[1]:
                    activations = learner.trainable.activations([own, other], inputs)
                    for support, name in SUPPORTS.items():
                        settings = PIASettings(support=support)
                        aligned, _ = align_global(own, other, activations, settings)
                        found.setdefault((*widths, name), []).extend(changes(learner, own, aligned))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    runs = [measured(seed) for seed in options.seeds]
    print(f"{machine()}\n{len(options.seeds)} seeds\n")
    print(f"{'neurons':<12}{'matched by':<16}{'mean %':>8}{'least':>8}{'greatest':>10}")
    for key in sorted({key for run in runs for key in run}):
        values = [100 * value for run in runs for value in run.get(key, [])]
        own, other, support = key
        means = f"{statistics.fmean(values):>8.0f}{min(values):>8.0f}{max(values):>10.0f}"
        print(f"{f'{own} to {other}':<12}{support:<16}{means}")


if __name__ == "__main__":
    main()

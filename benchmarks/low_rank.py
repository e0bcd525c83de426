# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How far the average of LoRA adapters is from the average of what they compute.

    python benchmarks/low_rank.py [--rounds 3] [--seeds 0 1 2]

Five sites train LoRA on the embedded federation, from one start and from a start of their own. After each round the
sites' adapters are aggregated in every way, and the product B A of the result is compared with the mean of the sites'
products, the change of the weights that an average of the whole matrices would give: the relative Frobenius error over
all matrices. Sites of unequal rank can be averaged by `svd` and `stack` alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from measured import ROOT, machine, show

from fedpeft.alignment import integrate
from fedpeft.alignment.low_rank import integrate_products, stack_products
from fedpeft.alignment.settings import PIASettings
from fedpeft.core.keys import group_by_place
from fedpeft.core.states import State
from fedpeft.federate import federate
from fedpeft.job.composing import compose
from fedpeft.site.learner import Learner

SERVER_PIA = PIASettings(support="weights", integration="weight_space")
UNEQUAL = "method.site_settings={slake: {r: 2}, vqa-rad: {r: 8}}"
STARTS = {
    "one start": ["method.aggregation=fedavg"],
    "own starts": ["method.aggregation=fedavg", "method.initialization=own"],
    "own starts, ranks 2, 8, 4, 4 and 4": ["method.aggregation=svd", "method.initialization=own", UNEQUAL],
}
OF_ONE_RANK: dict[str, Callable[..., tuple[State, object]]] = {
    "mean of the factors (fedavg)": lambda states, counts: integrate(states, counts, PIASettings(server=False)),
    "aligned, then averaged (pia)": lambda states, counts: integrate(states, counts, SERVER_PIA),
}
OF_ANY_RANKS: dict[str, Callable[..., tuple[State, object]]] = {
    "mean of the products, factored (svd)": integrate_products,
    "factors side by side (stack)": stack_products,
}


def product(down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The change of a weight matrix, (m, n)."""
    return up.double() @ down.double()


def errors(states: Sequence[State], counts: Sequence[int]) -> dict[str, float]:
    """Relative error of each way that takes these ranks, in percent."""
    shares = [count / sum(counts) for count in counts]
    places = group_by_place(states[0]).values()
    exact = [
        sum(w * product(state[names["A"]], state[names["B"]]) for w, state in zip(shares, states, strict=True))
        for names in places
    ]
    size = sum(float(matrix.square().sum()) for matrix in exact)
    one_rank = len({tuple(tensor.shape for tensor in state.values()) for state in states}) == 1
    found = {}
    for way, aggregate in {**(OF_ONE_RANK if one_rank else {}), **OF_ANY_RANKS}.items():
        merged, _ = aggregate(states, counts)
        found[way] = [product(merged[names["A"]], merged[names["B"]]) for names in places]
    return {
        way: 100 * (sum(float((a - b).square().sum()) for a, b in zip(got, exact, strict=True)) / size) ** 0.5
        for way, got in found.items()
    }


def run(rounds: int, seed: int, overrides: Sequence[str]) -> list[dict[str, float]]:
    """Errors after each round of one federation."""
    settings = ["method.name=lora", f"training.rounds={rounds}", *overrides]
    sections = compose(ROOT / "app_configs", "fedpia_task1", [*settings, f"training.seed={seed}", f"data.seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        sites = sections["federation"]["sites"]
        learners = {s: Learner.from_sections(sections, site=s, folder=Path(folder) / s) for s in sites}
        results = federate(learners)
        return [errors([u.state for u in r.updates.values()], [u.samples for u in r.updates.values()]) for r in results]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    chosen = parser.parse_args()
    print(machine())
    for title, overrides in STARTS.items():
        seeds = [run(chosen.rounds, seed, overrides) for seed in chosen.seeds]
        rows = [
            (way, *(f"{statistics.fmean(seed[number][way] for seed in seeds):.2f}" for number in range(chosen.rounds)))
            for way in seeds[0][0]
        ]
        heads = ("error, %", *(f"round {number + 1}" for number in range(chosen.rounds)))
        show(
            title,
            heads,
            rows,
            f"Means of {len(seeds)} seeds; LoRA (r = 4 where no rank is named) on query and value of the tiny ViLT.",
        )


if __name__ == "__main__":
    main()

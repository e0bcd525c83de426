# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the server's references recover: copies of one adapter with noise, in orders of their own, and small adapters.

    python benchmarks/barycenter.py

The table shows the error of the integrated adapter as a share of the original's length, beside that of averaging the
same copies in their true order. The last line tries all orders of three sites' adapters with 2 to 5 neurons.
"""

from __future__ import annotations

import argparse
import itertools

import torch
from torch import Tensor

from fedpeft.alignment import PIASettings, barycenter, transport_plan
from fedpeft.alignment.common_order import common_order, in_order
from fedpeft.alignment.transport import permutation_of

REFERENCES = ("fedavg", "largest", "fixed_point")
PASSES = PIASettings().passes


def copies(sites: int, noise: float, seed: int, width: int = 48, hidden: int = 768) -> tuple[dict, list, list]:
    """An adapter, copies of it with noise, a share of its scale, and the same copies in orders of their own."""
    rng = torch.Generator().manual_seed(seed)
    shapes = {"down.weight": (width, hidden), "down.bias": (width,), "up.weight": (hidden, width), "up.bias": (hidden,)}
    original = {name: 0.02 * torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    scale = 0.02 * noise
    true = [{n: t + scale * torch.randn(t.shape, generator=rng) for n, t in original.items()} for _ in range(sites)]
    return original, true, [in_an_order(copy, torch.randperm(width, generator=rng)) for copy in true]


def in_an_order(adapter: dict[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    axes = {"down.weight": 0, "down.bias": 0, "up.weight": 1}
    return {n: t.index_select(axes[n], order) if n in axes else t for n, t in adapter.items()}


def error(adapter: dict[str, Tensor], original: dict[str, Tensor]) -> float:
    order = permutation_of(transport_plan(adapter["down.weight"], original["down.weight"]))
    gaps = [(t - original[n]).square().sum() for n, t in in_an_order(adapter, order).items()]
    return float((sum(gaps) / sum(t.square().sum() for t in original.values())).sqrt())


def optimum(supports: Tensor, weights: list[float]) -> float:
    """The least weighted sum of squared distances to the mean over all orders."""
    orders = list(itertools.permutations(range(supports.shape[1])))
    tried = itertools.product([range(supports.shape[1])], orders, orders)
    return min(in_order(list(supports.double()), weights, torch.tensor(each)).spread(weights) for each in tried)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=20, help="of small adapters, for each number of neurons")
    options = parser.parse_args()
    print(f"{'error, % of the original':<28}{'true order':>12}" + "".join(f"{name:>14}" for name in REFERENCES))
    for sites, noise in itertools.product((2, 5, 8), (0.0002, 0.01, 0.1)):
        original, true, shuffled = copies(sites, noise, options.seed)
        errors = [error(barycenter(true, server=False), original)]
        errors += [error(barycenter(shuffled, gamma=0.0, reference=name), original) for name in REFERENCES]
        print(f"{f'{sites} sites, {noise:.2%} noise':<28}" + "".join(f"{100 * e:>13.3f}" for e in errors))

    rng = torch.Generator().manual_seed(options.seed)
    reached = excess = 0.0
    for width, _ in itertools.product((2, 3, 4, 5), range(options.cases)):
        supports = torch.randn(3, width, 4, generator=rng)
        drawn = 0.1 + torch.rand(3, generator=rng)
        weights = (drawn / drawn.sum()).tolist()
        above = common_order(list(supports), weights, PASSES).spread(weights) / optimum(supports, weights) - 1
        reached, excess = reached + (above < 1e-5), max(excess, above)
    print(f"\nall orders tried: best one reached in {reached:.0f} of {4 * options.cases}, largest excess {excess:.1%}")


if __name__ == "__main__":
    main()

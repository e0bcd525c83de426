# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Put the LoRA factors of all sites side by side: their product is the mean of the sites' products, without error.

    A = [A_1; ...; A_K],    B = [w_1 B_1, ..., w_K B_K],    B A = sum_k w_k B_k A_k,    w_k = n_k / n

A site adds the product to its frozen weights and starts the next round with fresh factors (`fedpeft.methods.products`).
The global adapter holds the factors of all rounds, the new ones at the end, so that only those have to be sent. Where
more of them stand side by side than twice the rank of any matrix, they are factored again to that rank, also without
error: from then on the adapter grows anew.

Source: Wang et al. 2024, FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedpeft.alignment.factors import MOST_RANKS, Pair, factor_places
from fedpeft.alignment.low_rank import products_of_round, truncated
from fedpeft.alignment.robust_settings import RobustSettings
from fedpeft.alignment.settings import PIASettings
from fedpeft.core.states import State, computable


def stack_products(
    states: Sequence[State],
    counts: Sequence[float],
    settings: PIASettings | None = None,
    *,
    sites: Sequence[str] | None = None,
    previous: State | None = None,
    robust: RobustSettings | None = None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the factors of the rounds before and, behind them, those of this round; other tensors are averaged.

    Args:
        states: the factors of each site, of any ranks; see `integrate_products`.
        counts, settings, sites, robust: see there.
        previous: the factors of the rounds before.

    Returns:
        The factors, and a report in which no neuron moved.

    Raises:
        FedpeftError: see `integrate_products`.
    """
    return products_of_round(states, counts, settings, _stacked, sites=sites, previous=previous, robust=robust)


def product_length(state: State) -> tuple[float, int]:
    """Return the sum of squares of all products of a state, and how many numbers they have; none is formed."""
    total, count = 0.0, 0
    for names in factor_places(state).values():
        down, up = state[names["A"]].double(), state[names["B"]].double()
        total += float(((up.T @ up) * (down @ down.T)).sum())
        count += up.shape[0] * down.shape[1]
    return max(total, 0.0), count


def _stacked(states: Sequence[State], weights: Sequence[float], pair: Pair, previous: State) -> dict[str, Tensor]:
    (up_key,) = pair.ups
    downs = [state[pair.down] for state in states]
    dtype = downs[0].dtype
    ups = [(computable(state[up_key]) * weight).to(dtype) for state, weight in zip(states, weights, strict=True)]
    if pair.down in previous:
        downs, ups = [previous[pair.down], *downs], [previous[up_key], *ups]
    down, up = torch.cat(downs), torch.cat(ups, dim=1)
    largest = min(up.shape[0], down.shape[1])
    if down.shape[0] > MOST_RANKS * largest:
        down, up = (factor.to(dtype).contiguous() for factor in truncated(down.double(), up.double(), largest))
    return {pair.down: down, up_key: up}

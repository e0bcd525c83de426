# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Align the adapters of several sites to each other: all into the order in which they are nearest to their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fedpeft.alignment.common_order import common_order, in_order
from fedpeft.alignment.neurons import Neurons, Tensors
from fedpeft.alignment.permutation import Aligned, reordered
from fedpeft.alignment.settings import PIASettings


@torch.no_grad()
def align_jointly(
    clients: Mapping[str, Tensors], weights: Sequence[float], neurons: Neurons, settings: PIASettings
) -> dict[str, Aligned]:
    """Put the neurons of all adapters in one order, comparing them by their incoming weights.

    Args:
        clients: owner -> its adapter, all of one width: tensor name -> tensor.
        weights: of the adapters in their mean, with the sum 1.
        neurons: where the neurons lie.
        settings: `passes` and `margin` are used.

    Returns:
        Owner -> its adapter in the common order; the figures measure distances to the mean of all.
    """
    supports = [neurons.hidden_support(tensors) for tensors in clients.values()]
    best = common_order(supports, weights, settings.passes)
    moves = (best.orders != torch.arange(best.orders.shape[1], device=best.orders.device)).sum(dim=1).tolist()
    unmoved = in_order(supports, weights) if settings.margin and any(moves) else None
    held = unmoved is not None and best.spread(weights) >= (1 - settings.margin) * unmoved.spread(weights)
    chosen = unmoved if held else best
    aligned = {}
    for k, (owner, tensors) in enumerate(clients.items()):
        moved = 0 if held else moves[k]
        placed = reordered(tensors, neurons, best.orders[k]) if moved else tensors
        after = float(chosen.distances[k].mean())
        aligned[owner] = Aligned(
            tensors={name: tensor for name, tensor in placed.items() if name not in neurons.shared},
            changed=tuple(name for name in tensors if name in neurons.incoming or name in neurons.outgoing),
            before=float(torch.linalg.vector_norm(supports[k] - chosen.mean, dim=1).mean()) if moved else after,
            after=after,
            moved=moved / len(chosen.mean),
            held=held and moves[k] > 0,
        )
    return aligned

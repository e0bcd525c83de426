# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the sites' adapters of a round are aligned to: their average, the largest site's adapter, or each other."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedpeft.alignment.averaging import fedavg_weights, weighted_mean
from fedpeft.alignment.joint_alignment import align_jointly
from fedpeft.alignment.neurons import Neurons, Tensors
from fedpeft.alignment.permutation import Aligned, align_adapter
from fedpeft.alignment.robust_mean import nearest
from fedpeft.alignment.robust_settings import RobustSettings
from fedpeft.alignment.settings import LARGEST, PIASettings
from fedpeft.alignment.transport import cost_matrices

TIE_BREAK = 1e-6


def align_round(
    clients: Mapping[str, Tensors],
    peers: Mapping[str, float],
    center: Tensors | None,
    neurons: Neurons,
    settings: PIASettings,
    robust: RobustSettings,
    shared: Tensors,
) -> dict[str, Aligned]:
    """Return every site's adapter of one place in one order.

    Args:
        clients: owner -> its tensors.
        peers: owner -> count, for those that are as wide as the result.
        center: the average of the peers, unless their fixed point takes its place; without any, the global adapter.
        neurons: where the neurons lie.
        settings: `reference`, `margin` and those of `align_adapter` are used.
        robust: whether counts can be trusted.
        shared: the new global value of what the kind shares over the model.
    """
    together: dict[str, Aligned] = {}
    guide = center
    if peers and settings.finds_fixed_point:
        shares = fedavg_weights(list(peers.values()), settings)
        together = align_jointly({owner: clients[owner] for owner in peers}, shares, neurons, settings)
        if len(together) < len(clients):
            ordered = [row.tensors for row in together.values()]
            guide = {**{name: weighted_mean((t[name] for t in ordered), shares) for name in ordered[0]}, **shared}
    elif peers:
        tables = [clients[owner] for owner in peers]
        leading = (
            clients[max(peers, key=peers.get)]
            if robust.weighs
            else nearest(tables, center, [n for n in center if n not in shared])
        )
        guide = _guide(center, leading, settings)
    rest = {owner: tensors for owner, tensors in clients.items() if owner not in together}
    alone: dict[str, Aligned] = {}
    if rest:
        goal, supports = neurons.hidden_support(guide), [neurons.hidden_support(tensors) for tensors in rest.values()]
        for owner, support, cost in zip(rest, supports, cost_matrices(supports, goal), strict=True):
            known = (support, goal, cost)
            alone[owner] = align_adapter(rest[owner], guide, neurons, settings, margin=settings.margin, compared=known)
    return {owner: together.get(owner) or alone[owner] for owner in clients}


def _guide(center: Tensors, leading: Tensors, settings: PIASettings) -> dict[str, Tensor]:
    """Return the adapter that the sites are aligned to: the average, or the largest site's adapter.

    The average of two copies in different orders is equally far from both, an exact tie in which each would keep its
    own order. A small step toward one site breaks the tie: the largest site, or with a robust average, where no site's
    count is trusted, the site nearest to the average. In float64, so that the step is not lost to rounding.
    """
    if settings.reference == LARGEST:
        return dict(leading)
    return {name: tensor.double().lerp(leading[name].double(), TIE_BREAK) for name, tensor in center.items()}

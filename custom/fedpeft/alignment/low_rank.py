# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Average what LoRA's factors multiply to, and factor the average again.

A site's update of a matrix is the product B A. The mean of the factors is in general another matrix than the mean of
the products; this file computes the latter, and returns the nearest product of the same rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpeft.alignment.averaging import fedavg_weights
from fedpeft.alignment.integration import integrate
from fedpeft.alignment.robust_settings import RobustSettings
from fedpeft.alignment.settings import PIASettings
from fedpeft.errors import FedpeftError
from fedpeft.keys import by_place
from fedpeft.states import State

FACTORS = ("A", "B")


def integrate_products(
    states: Sequence[State],
    counts: Sequence[float],
    settings: PIASettings | None = None,
    *,
    sites: Sequence[str] | None = None,
    previous: State | None = None,
    robust: RobustSettings | None = None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Average the products of a round and factor them again by truncated singular value decomposition.

        dW = sum_k n_k B_k A_k / sum_k n_k = U S V^T,     B = U_r sqrt(S_r),  A = sqrt(S_r) V_r^T

    This is the best approximation of dW of rank r in the Frobenius norm (Eckart and Young). Tensors that are not
    LoRA's factors are averaged as FedAvg does, and a place that no site sent keeps its values in `previous`.

    Args:
        states: one adapter state for each site, `layer.<l>.<slot>.A` (r, n) and `.B` (m, r).
        counts: training samples n_k of each site, above 0.
        settings: `weighting` is used.
        sites: names for errors; default `states[0]`, ...
        previous: the global adapter so far.
        robust: its average must be the mean.

    Returns:
        The global adapter and a report in which no neuron moved, as `integrate` does.

    Raises:
        FedpeftError: another average than the mean; else see `integrate`.

    Source: the federated parameter-efficient tuning of vision transformers, LoRA with server-side refactoring.
    """
    if robust and not robust.weighs:
        raise FedpeftError(f"products are averaged by their mean, not by average={robust.average!r}: leave it out.")
    settings = replace(settings or PIASettings(), server=False, aligned_at="server")
    merged, report = integrate(states, counts, settings, sites=sites, previous=previous)
    for names in by_place(merged).values():
        members = [k for k, state in enumerate(states) if set(FACTORS) <= names.keys() and names["A"] in state]
        if members:
            weights = fedavg_weights([counts[k] for k in members], settings)
            merged |= _refactored([states[k] for k in members], weights, names, merged)
    return merged, report


def mean_product(downs: Sequence[Tensor], ups: Sequence[Tensor], weights: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return factors of `sum_k w_k B_k A_k` whose rank is the sum of the ranks, in float64: nothing is rounded away.

    Args:
        downs: A_k (r_k, n).
        ups: B_k (m, r_k).
        weights: w_k.
    """
    wide = torch.cat([weight * up.double() for up, weight in zip(ups, weights, strict=True)], dim=1)
    return torch.cat([down.double() for down in downs]), wide


def truncated(down: Tensor, up: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the best approximation of `up @ down` of a rank, as factors of equal norm.

    The product (m, n) itself is never formed: two QR decompositions reduce it to a matrix of the factors' rank.

    Args:
        down: (R, n).
        up: (m, R).
        rank: r, at most R.
    """
    up_basis, up_rest = torch.linalg.qr(up)
    down_basis, down_rest = torch.linalg.qr(down.T)
    left, singular, right = torch.linalg.svd(up_rest @ down_rest.T)
    root = singular[:rank].sqrt()
    new_up, new_down = up_basis @ left[:, :rank], right[:rank] @ down_basis.T
    largest = new_up.gather(0, new_up.abs().argmax(dim=0, keepdim=True))  # a pair of vectors has no sign of its own
    signs = torch.where(largest < 0, -1.0, 1.0).to(new_up)
    return new_down * signs.T * root[:, None], new_up * signs * root


def _refactored(
    states: Sequence[State], weights: Sequence[float], names: Mapping[str, str], mean: State
) -> dict[str, Tensor]:
    """Return the two factors of a place.

    Where the mean of the products has a lower rank than the factors (no site has trained yet, B is zero), a neuron
    without a product would never train again: A then keeps the mean of the sites' and B stays zero.
    """
    downs, ups = ([state[names[name]] for state in states] for name in FACTORS)
    rank = downs[0].shape[0]
    down, up = truncated(*mean_product(downs, ups, weights), rank)
    dead = up.norm(dim=0) <= torch.finfo(torch.float32).eps * max(float(up.norm()), torch.finfo(torch.float32).tiny)
    down[dead] = mean[names["A"]].double()[dead]
    up[:, dead] = 0
    return {names["A"]: down.to(downs[0].dtype), names["B"]: up.to(ups[0].dtype)}

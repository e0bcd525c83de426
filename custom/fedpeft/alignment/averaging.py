# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The weighted sum that FedAvg and PIA share, and its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torch import Tensor

from fedpeft.alignment.settings import PIASettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import computable


def weighted_mean(tensors: Iterable[Tensor], weights: Iterable[float]) -> Tensor:
    """Return sum_k weights_k W_k. FedAvg and PIA both use it, so that equal weights give equal bytes.

    Args:
        tensors: of one shape; read one after the other, so that a generator keeps only one in memory.
        weights: one for each; for a mean they sum to 1.

    Returns:
        The sum, in float32 (float64 for float64 tensors).
    """
    total: Tensor | None = None
    for tensor, weight in zip(tensors, weights, strict=True):
        tensor = computable(tensor)
        total = tensor * weight if total is None else total.add_(tensor, alpha=weight)
    if total is None:
        raise FedpeftError("there is nothing to average: give at least one tensor.")
    return total


def cap_share(counts: Sequence[float], most: float) -> list[float]:
    """Reduce sample counts so that none exceeds a share of their sum; unchanged if none does.

    Args:
        counts: above 0, one for each of K sites.
        most: the largest share, above 0 and at most 1; below 1 / K it counts as 1 / K, where all sites weigh the same.
    """
    most = max(most, 1 / len(counts))
    if not math.isfinite(sum(counts)):
        counts = [count / max(counts) for count in counts]  # only their proportions matter
    falling = sorted(map(float, counts), reverse=True)
    for capped, largest in enumerate(falling):  # so many sites weigh `level` each, and the others what they counted
        level = most * sum(falling[capped:]) / (1 - capped * most)
        if largest <= level * (1 + 1e-9):
            break
    return [min(count, level) for count in counts] if capped else list(counts)


def fedavg_weights(counts: Sequence[float], settings: PIASettings) -> list[float]:
    """Return n_k / n, or 1 / K with `weighting="uniform"`."""
    return _normalized([float(count) if settings.weighting == "samples" else 1.0 for count in counts])


def pia_weights(counts: Sequence[float], distances: Sequence[float], settings: PIASettings) -> list[float]:
    """Return the weight of each aligned adapter.

        normalize=True:  n_k exp(-gamma D_k) / sum_j n_j exp(-gamma D_j)      (n_k = 1 under weighting="uniform")
        normalize=False: exp(-gamma D_k) / K

    Args:
        counts: training samples n_k of each site.
        distances: D_k of each site's aligned adapter from the reference, Frobenius norm.
        settings: `gamma`, `normalize` and `weighting` are used.
    """
    if not settings.normalize:
        return [math.exp(-settings.gamma * distance) / len(distances) for distance in distances]
    # Distances count from the nearest site, a factor that cancels: without it all weights of far sites underflow to 0.
    nearest = min(distances)
    factors = [math.exp(-settings.gamma * (distance - nearest)) for distance in distances]
    ones = [1.0] * len(factors)
    return _normalized(
        [n * factor for n, factor in zip(counts if settings.weighting == "samples" else ones, factors, strict=True)]
    )


def _normalized(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    if not math.isfinite(total):
        return _normalized([weight / max(weights) for weight in weights])
    return [weight / total for weight in weights]

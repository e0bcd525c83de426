# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The weighted sum that FedAvg and PIA share, and averages that a few attackers cannot move far.

These are median, trimmed mean, Krum, multi-Krum and geometric median. No library is used because none fits: Flower's
versions need its whole framework, ByzFL's need torchvision, plotting libraries and a simulator, and scipy has the
trimmed mean only. The tests compare with numpy, scipy and brute force.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedpeft.alignment.settings import MEDIAN, PIASettings, RobustSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import computable


def weighted_mean(tensors: Iterable[Tensor], weights: Iterable[float]) -> Tensor:
    """Return sum_k weights_k W_k in float32 (float64 for float64 tensors); of a generator it keeps one in memory.

    FedAvg and PIA both use it, so that equal weights give equal bytes.
    """
    total: Tensor | None = None
    for tensor, weight in zip(tensors, weights, strict=True):
        tensor = computable(tensor)
        total = tensor * weight if total is None else total.add_(tensor, alpha=weight)
    if total is None:
        raise FedpeftError("there is nothing to average: give at least one tensor.")
    return total


def cap_share(counts: Sequence[float], limit: float) -> list[float]:
    """Reduce sample counts so that none exceeds the share `limit` of their sum; unchanged if none does.

    Below 1 / K the share counts as 1 / K, where all K sites weigh the same.
    """
    limit = max(limit, 1 / len(counts))
    if not math.isfinite(sum(counts)):
        counts = [count / max(counts) for count in counts]  # only their proportions matter
    falling = sorted(map(float, counts), reverse=True)
    for capped, largest in enumerate(falling):  # so many sites weigh `level` each, and the others what they counted
        level = limit * sum(falling[capped:]) / (1 - capped * limit)
        if largest <= level * (1 + 1e-9):
            break
    return [min(count, level) for count in counts] if capped else list(counts)


def fedavg_weights(counts: Sequence[float], settings: PIASettings) -> list[float]:
    """Return n_k / n, or 1 / K with `weighting="uniform"`."""
    return _normalized([float(count) if settings.weighting == "samples" else 1.0 for count in counts])


def pia_weights(counts: Sequence[float], distances: Sequence[float], settings: PIASettings) -> list[float]:
    """Return the weight of each aligned adapter, of its count n_k and its distance D_k from the reference.

    normalize=True:  n_k exp(-gamma D_k) / sum_j n_j exp(-gamma D_j)      (n_k = 1 under weighting="uniform")
    normalize=False: exp(-gamma D_k) / K
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


def near_ones(
    tables: Sequence[Mapping[str, Tensor]],
    counts: Sequence[float],
    distances: Sequence[float],
    names: Sequence[str],
    settings: PIASettings,
    min_share: float,
) -> list[int]:
    """Return the numbers of the tables without those farthest from the mean, for the paper's weights not to vanish.

    One far away moves the mean away from all. Fewer than half are left out; all of these, if that is not enough as the
    tables are aligned.
    """
    near = dict(enumerate(distances))
    for _ in range((len(tables) - 1) // 2):
        near.pop(max(near, key=near.__getitem__))
        shares = fedavg_weights([counts[k] for k in near], settings)
        center = {name: weighted_mean((tables[k][name] for k in near), shares) for name in names}
        near = {k: distance_of(tables[k], center, names) for k in near}
        if sum(pia_weights([counts[k] for k in near], list(near.values()), settings)) >= min_share:
            break
    return list(near)


ITERATIONS, TOLERANCE = 200, 1e-10


def average(
    tables: Sequence[Mapping[str, Tensor]],
    names: Iterable[str],
    weights: Sequence[float],
    settings: RobustSettings,
) -> dict[str, Tensor]:
    """Return the weighted mean of several tables of tensors, or their robust average, which uses no weights."""
    if settings.weighs:
        return {name: weighted_mean((table[name] for table in tables), weights) for name in names}
    return robust_mean(tables, names, settings)


def robust_mean(
    tables: Sequence[Mapping[str, Tensor]], names: Iterable[str], settings: RobustSettings
) -> dict[str, Tensor]:
    """Return the robust average of several sites' tensors of equal shapes; all tensors of a site are one vector."""
    names = list(names)
    rows = torch.stack([torch.cat([computable(table[name]).flatten() for name in names]) for table in tables])  # (K, D)
    parts = robust_row(rows, settings).split([tables[0][name].numel() for name in names])
    return {name: part.reshape(tables[0][name].shape) for name, part in zip(names, parts, strict=True)}


def robust_row(rows: Tensor, settings: RobustSettings) -> Tensor:
    """Return the robust average (D,) of rows (K, D); their median if K is too small for the rule."""
    count, attackers = len(rows), settings.attackers
    rule, least = RULES[settings.average]
    return (rule if count >= least(attackers) else _median)(rows, attackers)


def distance_of(tensors: Mapping[str, Tensor], reference: Mapping[str, Tensor], names: Iterable[str]) -> float:
    """Return D_k = || W~_k - W_G ||_F over the named tensors, in float64: float32 cannot square what is above 1e19."""
    gaps = [tensors[name] - reference[name] for name in names]
    distance = math.hypot(*(float(torch.linalg.vector_norm(gap, dtype=torch.float64)) for gap in gaps))
    if math.isfinite(distance):
        return distance
    largest = max(float(gap.abs().max()) for gap in gaps)  # nor can float64 square what is above 1e154
    return largest * math.hypot(*(float(torch.linalg.vector_norm(gap / largest)) for gap in gaps))


def nearest(
    tables: Sequence[Mapping[str, Tensor]], center: Mapping[str, Tensor], names: Iterable[str]
) -> Mapping[str, Tensor]:
    """Return the table nearest to another in the named tensors, in the Frobenius norm; the first of several."""
    names = list(names)

    def gap(table: Mapping[str, Tensor]) -> float:
        return sum(float((table[name].double() - center[name].double()).square().sum()) for name in names)

    return min(tables, key=gap)


def _median(rows: Tensor, _: int) -> Tensor:
    """Return the median of each coordinate; of an even number the mean of the middle two."""
    ordered, middle = rows.sort(dim=0).values, len(rows) // 2
    return ordered[middle].clone() if len(rows) % 2 else ordered[middle - 1] / 2 + ordered[middle] / 2


def _trimmed_mean(rows: Tensor, attackers: int) -> Tensor:
    """Return the mean of each coordinate without the f largest and the f smallest."""
    return rows.sort(dim=0).values[attackers : len(rows) - attackers].mean(dim=0)


def _krum(rows: Tensor, attackers: int) -> Tensor:
    """Return the row with the smallest sum of squared distances to its K - f - 2 nearest others."""
    return rows[_krum_order(rows, attackers)[0]].clone()


def _multi_krum(rows: Tensor, attackers: int) -> Tensor:
    """Return the mean of the K - f rows that Krum ranks first."""
    kept = sorted(_krum_order(rows, attackers)[: len(rows) - attackers])
    return rows[kept].mean(dim=0)


def _krum_order(rows: Tensor, attackers: int) -> list[int]:
    squared = torch.stack([(rows - row).double().square().sum(dim=1) for row in rows])  # (K, K)
    squared.fill_diagonal_(torch.inf)
    scores = squared.sort(dim=1).values[:, : len(rows) - attackers - 2].sum(dim=1)
    return scores.argsort(stable=True).tolist()


def _geometric_median(rows: Tensor, _: int) -> Tensor:
    """Return the point with the smallest sum of distances to all rows, by Weiszfeld's iteration from their median.

    Where the point is one of the rows, its own distance of 0 would keep it there. It stays only where the others pull
    less than the rows at that place hold; else it moves as far as their pull exceeds that.

    Source: Vardi and Zhang 2000, The multivariate L1-median and associated data depth.
    """
    exact = rows.double()
    point = _median(exact, 0)
    smallest = TOLERANCE * float(torch.linalg.vector_norm(exact - point, dim=1).median())
    for _ in range(ITERATIONS):
        distances = torch.linalg.vector_norm(exact - point, dim=1)
        away = distances > smallest
        weights = torch.where(away, 1 / distances, 0.0)
        held = len(rows) - int(away.sum())
        if held == len(rows):
            break
        moved = (weights / weights.sum()) @ exact
        if held:
            pull = float(torch.linalg.vector_norm(weights @ (exact - point)))
            moved = torch.lerp(moved, point, min(1.0, held / pull) if pull else 1.0)
        step = float(torch.linalg.vector_norm(moved - point))
        point = moved
        if step <= smallest:
            break
    return point.to(rows.dtype)


# name -> (function of rows and number of attackers, least number of rows for that number of attackers)
RULES = {
    MEDIAN: (_median, lambda attackers: 1),
    "trimmed_mean": (_trimmed_mean, lambda attackers: 2 * attackers + 1),
    "krum": (_krum, lambda attackers: 2 * attackers + 3),
    "multi_krum": (_multi_krum, lambda attackers: 2 * attackers + 3),
    "geometric_median": (_geometric_median, lambda attackers: 1),
}

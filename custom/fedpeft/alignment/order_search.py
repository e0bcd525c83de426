# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Search for the order of neurons in which the adapters of all sites are nearest to their mean.

The mean consists of the sites' own neurons, so the spread around it is, up to a constant, minus its squared length:

    sum_k w_k || x_k[o_k] - c ||^2  =  sum_k w_k || x_k ||^2  -  || c ||^2,    c = sum_k w_k x_k[o_k]

Site by site, each takes the order that matches the mean of the *others* best, which is one assignment, exactly solved;
with its own neurons in the mean, a site would hold on to the order it has. No step makes c shorter; when none makes it
longer, c is a fixed point. Which one depends on the start: the sites as they stand, and all matched to one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

ROUNDING = 1e-6  # of the sites' mean squared length: what float32 leaves uncertain in that of their mean
AS_THEY_STAND = -1  # the start at the mean
MOST_STARTS = 16  # sites that serve as a start, so that the time grows with the number of sites and not its square
PROMISING = 3  # starts that go on after the first pass; more of them rarely found better orders


class Problem(NamedTuple):
    """Neurons of several sites that are to be matched; `problem_of` makes it.

    Args:
        supports: of K sites with n neurons each, (K, n, f).
        weights: of the sites, with the sum 1.
        ranking: the sites, in the order in which they are matched and serve as a start; of equally good results the
            first counts.
        own: inner products of each site's neurons with each other, (K, n, n).
        least: a smaller gain counts as rounding, and a site keeps its order.
    """

    supports: Tensor
    weights: Sequence[float]
    ranking: Sequence[int]
    own: Tensor
    least: float


class Found(NamedTuple):
    """Orders, and the way there.

    Args:
        orders: which neuron of each site takes each index, (K, n).
        lengths: squared length of the mean, at the start and after each pass.
        start: the site that all were matched to first, or `AS_THEY_STAND`.
    """

    orders: np.ndarray
    lengths: list[float]
    start: int


def problem_of(supports: Tensor, weights: Sequence[float], ranking: Sequence[int]) -> Problem:
    """Return the problem of matching these sites; arguments as in `Problem`."""
    own = torch.bmm(supports, supports.mT)
    squared = own.diagonal(dim1=1, dim2=2).sum(dim=1).tolist()
    return Problem(
        supports, weights, ranking, own, ROUNDING * sum(w * s for w, s in zip(weights, squared, strict=True))
    )


def search(problem: Problem, passes: int) -> Found:
    """Return the best orders: one pass from every start, then the most promising of them to the end.

    Args:
        problem: see `problem_of`.
        passes: over all sites, from each start; at least 1.
    """
    first = problem.ranking[0]
    starts = _different(_starts(problem), first)
    tried = [climb(problem, orders, 1, start) for start, orders in starts]
    tried.sort(key=lambda climbed: -climbed.lengths[-1])
    promising = _different(((k, climbed.orders) for k, climbed in enumerate(tried)), first)
    best = tried[0]
    for k, orders in promising[:PROMISING]:
        climbed = climb(problem, orders, passes - 1, tried[k].start)
        if climbed.lengths[-1] > best.lengths[-1] + problem.least:
            best = climbed._replace(lengths=tried[k].lengths[:1] + climbed.lengths)
    return best


def climb(problem: Problem, orders: np.ndarray, passes: int, start: int = AS_THEY_STAND) -> Found:
    """Match one site after the other to the mean of the others, until none moves or the passes are used up.

    Args:
        problem: see `problem_of`.
        orders: where to start, (K, n).
        passes: over all sites.
        start: for the result.
    """
    supports, weights, ranking, own, least = problem
    orders = orders.copy()
    indices = np.arange(orders.shape[1])
    mean = _mean(problem, orders)
    lengths = [_squared(mean)]
    unmoved = 0  # sites in a row
    for _ in range(passes):
        for k in ranking:
            present = torch.from_numpy(orders[k])
            of_itself = own[k].index_select(1, present)  # part of the mean that would hold the site to its order
            match = torch.addmm(of_itself, supports[k], mean.T, beta=-weights[k]).numpy()
            order = linear_sum_assignment(match.T, maximize=True)[1]
            gain = 2 * weights[k] * float((match[order, indices] - match[orders[k], indices]).sum(dtype=np.float64))
            unmoved += 1
            if gain > least:
                mean.add_(supports[k].index_select(0, torch.from_numpy(order)), alpha=weights[k])
                mean.sub_(supports[k].index_select(0, present), alpha=weights[k])
                orders[k], unmoved = order, 0
            if unmoved == len(ranking):
                break
        lengths.append(_squared(mean))
        if unmoved == len(ranking):
            break
    return Found(orders, lengths, start)


def _mean(problem: Problem, orders: np.ndarray) -> Tensor:
    ordered = torch.stack([x[torch.from_numpy(o)] for x, o in zip(problem.supports, orders, strict=True)])
    shares = torch.tensor(problem.weights, dtype=ordered.dtype)
    return torch.mv(ordered.flatten(1).T, shares).view_as(ordered[0])


def _squared(mean: Tensor) -> float:
    return float(mean.square().sum(dtype=torch.float64))


def _starts(problem: Problem) -> Iterator[tuple[int, np.ndarray]]:
    supports, ranking = problem.supports, problem.ranking
    sites, width, _ = supports.shape
    yield AS_THEY_STAND, np.tile(np.arange(width), (sites, 1))
    matches = {(site, site): np.arange(width) for site in ranking}
    for site in ranking[:MOST_STARTS]:
        for other in ranking:
            if (site, other) not in matches:
                match = linear_sum_assignment((supports[site] @ supports[other].T).numpy(), maximize=True)[1]
                matches[site, other], matches[other, site] = match, np.argsort(match)
        yield site, np.stack([matches[site, other] for other in range(sites)])


def _different(candidates: Iterable[tuple[int, np.ndarray]], site: int) -> list[tuple[int, np.ndarray]]:
    """Return the first of those orders that differ only in a relabeling of all sites alike, which changes nothing."""
    different: dict[bytes, tuple[int, np.ndarray]] = {}
    for number, orders in candidates:
        different.setdefault(orders[:, np.argsort(orders[site])].tobytes(), (number, orders))
    return list(different.values())

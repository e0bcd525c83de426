# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The order of neurons in which the adapters of all sites are nearest to their mean.

Over one order for each site, this minimizes the spread

    sum_k w_k || x_k[o_k] - c ||^2,    c = sum_k w_k x_k[o_k],    x_k (n, f): the supports of site k's n neurons

whose minimum is the barycenter of the sites under permutations. Relabeling all sites alike changes nothing, so of these
orders the one is returned in which most neurons stay where they are.

Where sites differ less from each other than their neurons do, the minimum needs no search. Let each neuron be matched
to the nearest one of one site. If then no site's neuron i is further than A_i from c_i, and c_i and c_j are more than
3 A_i + A_j apart, each match is the nearest for every pair of sites: no order is better for any pair, nor for all.

The mean consists of the sites' own neurons, so the spread around it is, up to a constant, minus its squared length:

    sum_k w_k || x_k[o_k] - c ||^2  =  sum_k w_k || x_k ||^2  -  || c ||^2,    c = sum_k w_k x_k[o_k]

Site by site, each takes the order that matches the mean of the *others* best, which is one assignment, exactly solved;
with its own neurons in the mean, a site would hold on to the order it has. No step makes c shorter; when none makes it
longer, c is a fixed point. Which one depends on the start: the sites as they stand, and all matched to one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedpeft.alignment.averaging import weighted_mean
from fedpeft.alignment.neurons import Neurons, Tensors
from fedpeft.alignment.permutation import Aligned, reordered
from fedpeft.alignment.settings import PIASettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import plain

ROUNDING = 1e-6  # of the sites' mean squared length: what float32 leaves uncertain in that of their mean
AS_THEY_STAND = -1  # the start at the mean
MAX_STARTS = 16  # sites that serve as a start, so that the time grows with the number of sites and not its square
PROMISING = 3  # starts that go on after the first pass; more of them rarely found better orders


class Problem(NamedTuple):
    """Neurons of several sites that are to be matched; `problem_of` makes it.

    In the order of `ranking` sites are matched and serve as a start; of equally good results the first counts.
    """

    supports: Tensor  # of K sites with n neurons each, (K, n, f)
    weights: Sequence[float]  # of the sites, with the sum 1
    ranking: Sequence[int]
    own: Tensor  # inner products of each site's neurons with each other, (K, n, n)
    least: float  # a smaller gain counts as rounding, and a site keeps its order


class Found(NamedTuple):
    """Orders, and the way there."""

    orders: np.ndarray  # which neuron of each site takes each index, (K, n)
    lengths: list[float]  # squared length of the mean, at the start and after each pass
    start: int  # the site that all were matched to first, or `AS_THEY_STAND`


def problem_of(supports: Tensor, weights: Sequence[float], ranking: Sequence[int]) -> Problem:
    """Return the problem of matching these sites; arguments as in `Problem`."""
    own = torch.bmm(supports, supports.mT)
    squared = own.diagonal(dim1=1, dim2=2).sum(dim=1).tolist()
    return Problem(
        supports, weights, ranking, own, ROUNDING * sum(w * s for w, s in zip(weights, squared, strict=True))
    )


def search(problem: Problem, passes: int) -> Found:
    """Return the best orders: one pass from every start, then the most promising of them to the end."""
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
    """Match one site after the other to the mean of the others, until none moves or the passes are used up."""
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
    for site in ranking[:MAX_STARTS]:
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


COORDINATES = 64  # the first of each support, enough to propose an order whose proof uses all of them
SLACK = 4e-3  # of the longest neuron of the mean: what float32 leaves uncertain in a distance near 0
UNEVEN = 100  # times as long as the median: beside such a neuron the others are lost in rounding
TIE = 1e-9  # of all weight: enough to choose between orders in which equally many neurons stay


class CommonOrder(NamedTuple):
    """The orders, and what they bring."""

    orders: Tensor  # which neuron of each site takes each index, (K, n)
    mean: Tensor  # of the sites in this order, (n, f)
    distances: Tensor  # of each site's neurons from it, (K, n)

    def spread(self, weights: Sequence[float]) -> float:
        """Return the weighted sum of squared distances of all sites from their mean."""
        return sum(w * float(row.square().sum()) for w, row in zip(weights, self.distances.double(), strict=True))


@plain
def common_order(supports: Sequence[Tensor], weights: Sequence[float], passes: int) -> CommonOrder:
    """Return for each site which of its neurons takes each index, so that the spread is least.

    The result does not depend on the order of the sites, and where nothing is gained no neuron moves.

    Args:
        supports: x_k (n, f) of each site.
        weights: w_k, which sum to 1.
        passes: over all sites, for each start of the search; at least 1.
    """
    first = [x[0].cpu().numpy().tobytes() for x in supports]
    ranking = sorted(range(len(supports)), key=lambda k: (-weights[k], first[k]))  # free of the given order
    common = in_order(supports, weights, _nearest(supports, ranking[0]))
    if not _is_proven(common):
        common = in_order(supports, weights, _searched(supports, weights, ranking, passes))
    labels = _most_in_place(common.orders.cpu().numpy(), weights, ranking[0])
    if labels is None:
        return common
    index = torch.from_numpy(labels).to(common.orders.device)
    return CommonOrder(common.orders[:, index], common.mean[index], common.distances[:, index])


def in_order(supports: Sequence[Tensor], weights: Sequence[float], orders: Tensor | None = None) -> CommonOrder:
    """Return what the given orders (K, n) bring; None: as the neurons stand."""
    ordered = list(supports)
    if orders is None:
        orders = torch.arange(len(supports[0]), device=supports[0].device).expand(len(supports), -1)
    else:
        ordered = [x.index_select(0, order) for x, order in zip(supports, orders, strict=True)]
    mean = weighted_mean(ordered, weights)
    gap = torch.empty_like(mean)
    distances = [torch.linalg.vector_norm(torch.sub(x, mean, out=gap), dim=1) for x in ordered]
    return CommonOrder(orders, mean, torch.stack(distances))


def _nearest(supports: Sequence[Tensor], hub: int) -> Tensor | None:
    """Return the orders that put each site's neurons to the nearest of one site's; None if these are as they stand."""
    parts = torch.stack([x[:, :COORDINATES] for x in supports])  # (K, n, 64)
    parts -= parts[hub].mean(dim=0)
    lengths = parts.square().sum(dim=2).flatten()[:, None]
    nearness = torch.addmm(lengths, parts.flatten(0, 1), parts[hub].T, alpha=-2)  # squared distance less the hub's part
    orders = nearness.view(*parts.shape[:2], -1).min(dim=1).indices
    stays = torch.arange(orders.shape[1], device=orders.device)
    return None if torch.equal(orders, stays.expand_as(orders)) else orders


def _is_proven(common: CommonOrder) -> bool:
    """Return whether no orders can have a smaller spread, by the condition above."""
    mean = common.mean - common.mean.mean(dim=0)
    lengths = mean.square().sum(dim=1)
    apart = torch.addmm(lengths[:, None] + lengths, mean, mean.T, alpha=-2).fill_diagonal_(torch.inf)  # squared
    farthest = common.distances.amax(dim=0)
    reach = 3 * farthest[:, None] + (farthest + SLACK * lengths.max().sqrt())
    return bool((reach.square_() < apart).all())


def _searched(supports: Sequence[Tensor], weights: Sequence[float], ranking: Sequence[int], passes: int) -> Tensor:
    orders = _best_orders(torch.stack(list(supports)).cpu(), weights, ranking, passes)
    return torch.from_numpy(orders).to(supports[0].device)


def _best_orders(stacked: Tensor, weights: Sequence[float], ranking: Sequence[int], passes: int) -> np.ndarray:
    """Search the orders of neurons (K, n, f); beside neurons that are much longer, those of the others once more.

    The spread is a sum over the indices, so that a better order of some of them, whatever the others, lowers it.
    """
    centered = stacked - stacked[ranking[0]].mean(dim=0)  # the same for all neurons, for smaller products
    problem = problem_of(centered, weights, ranking)
    if not np.isfinite(problem.least) and centered.dtype != torch.float64:
        problem = problem_of(centered.double(), weights, ranking)
    if not np.isfinite(problem.least):
        raise FedpeftError("the supports hold NaN or infinity, so no neuron can be matched: give finite values.")
    orders = search(problem, passes).orders
    rows = torch.arange(len(stacked))[:, None]
    placed = stacked[rows, torch.from_numpy(orders)]
    lengths = torch.linalg.vector_norm(placed - placed.flatten(0, 1).median(dim=0).values, dim=2, dtype=torch.float64)
    longest = lengths.amax(dim=0)
    others = longest < longest.max() / UNEVEN**0.5  # the next longer ones are searched with the rest
    if longest.max() > UNEVEN * longest.median():
        again = _best_orders(placed[:, others], weights, ranking, passes)
        orders[:, others.numpy()] = np.take_along_axis(orders[:, others.numpy()], again, axis=1)
    return orders


def _most_in_place(orders: np.ndarray, weights: Sequence[float], hub: int) -> np.ndarray | None:
    """Return new labels, the same for all sites, with which most neurons, by weight, stay; None for the old ones."""
    width = orders.shape[1]
    stays = np.arange(width)
    if (orders == stays).all():
        return None
    shares = np.repeat(weights, width)
    shares[hub * width : (hub + 1) * width] += TIE
    staying = np.bincount((width * orders + stays).ravel(), shares, width * width)  # (index, label)
    return linear_sum_assignment(staying.reshape(width, width), maximize=True)[1]


@torch.no_grad()
def align_jointly(
    clients: Mapping[str, Tensors], weights: Sequence[float], neurons: Neurons, settings: PIASettings
) -> dict[str, Aligned]:
    """Put the neurons of all adapters in one order, comparing them by their incoming weights.

    All have one width, and the weights the sum 1; the figures measure distances to the mean of all.
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

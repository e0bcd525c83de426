# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The exact front: supported assignments by shortest paths or linear programs, others by integer programs.

Shortest paths lead from every client's best layers to an even use of the layers. Assignments are flows from clients
over layers to a sink whose arcs cost more with every client. So an assignment is optimal for
`importance - lambda * sum_l n_l^2` as long as no chain of exchanges improves it: client i exchanges layer a for c,
client j exchanges c for …, until one takes b. Such a chain lowers n_a by one, raises n_b by one, leaves all other
counts as they are, and so changes sum_l n_l^2 by -2 (n_a - n_b - 1). The chain that loses least importance per unit of
that change gives the next lambda where the optimum changes, and the new optimum. The walk reaches every vertex of the
convex hull of the front without trying values of lambda.

HiGHS solves a linear program for supported assignments, and an integer program for all others.

    maximize  sum_il m_il S_il - lambda sum_l sum_k (2k - 1) y_lk
    where     sum_l m_il = b_i,    sum_i m_il = sum_k y_lk,    0 <= m, y <= 1

y_lk is the k-th client on layer l; the first costs lambda, the second 3 lambda, … so that n_l clients cost
lambda n_l^2. The matrix is that of a network, hence every optimal vertex is integral.

Source: F3OCUS (CVPR 2025). Successive shortest paths for flows of convex cost: Ahuja, Magnanti and Orlin, Network Flows
(1993), chapters 9 and 14; tests compare both ways with each other and with enumeration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np
import scipy.sparse as sparse
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, linprog, milp

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import one_of
from fedpeft.scheduling.front import Archive, Front
from fedpeft.scheduling.problem import Problem, build_problem, greedy


def supported(problem: Problem) -> Iterator[np.ndarray]:
    """Yield optimal assignments (N, L) for lambda from 0 to infinity, from the most important to the most balanced.

    Some may be on an edge of the hull, and the first few may be equally important; the caller removes these.
    """
    mask = greedy(problem)
    while True:
        yield mask.copy()
        best, giver = _exchanges(problem.scores, mask)
        loss, following = _shortest_paths(best)
        counts = mask.sum(axis=0)
        relief = 2 * (counts[:, None] - counts[None, :] - 1)
        rate = np.divide(loss, relief, out=np.full(loss.shape, np.inf), where=relief > 0)
        layer, last = np.unravel_index(rate.argmin(), rate.shape)
        if not np.isfinite(rate[layer, last]):
            return
        while layer != last:
            target = following[layer, last]
            mask[giver[layer, target], [layer, target]] = False, True
            layer = target


def _exchanges(scores: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least importance that exchanging layer a for b costs (L, L), and the client that can do it (L, L)."""
    gives = np.where(mask, scores, np.inf)
    takes = np.where(mask, -np.inf, scores)
    losses = gives[:, :, None] - takes[:, None, :]  # (N, L, L)
    giver = losses.argmin(axis=0)
    return np.take_along_axis(losses, giver[None], axis=0)[0], giver


def _shortest_paths(length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return distances (L, L), and the next step from a on the way to b (L, L), by Floyd and Warshall's algorithm."""
    distance = length.copy()
    following = np.tile(np.arange(len(length)), (len(length), 1))
    # an optimal assignment has no profitable cycle, and one that is due to rounding must not become a path
    noise = 1e-14 * np.abs(length[np.isfinite(length)]).max(initial=0.0)
    for middle in range(len(length)):
        detour = distance[:, middle, None] + distance[None, middle, :]
        shorter = detour < distance - noise
        distance[shorter] = detour[shorter]
        following = np.where(shorter, following[:, middle, None], following)
    return distance, following


class LinearProgram:
    """Objectives and constraints of one problem, built once for all values of lambda."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.clients, self.layers = problem.scores.shape
        # HiGHS stops within an absolute 1e-6 of the optimum: with scores up to 1e4 no real difference is that small
        self.unit = (float(np.abs(problem.scores).max()) or 1.0) / 1e4
        self.loss = np.concatenate([-problem.scores.ravel() / self.unit, np.zeros(self.clients * self.layers)])
        price = np.tile(2.0 * np.arange(self.clients) + 1, self.layers)
        self.squares = np.concatenate([np.zeros(self.clients * self.layers), price])

    @cached_property
    def matrix(self) -> sparse.csc_array:
        """(N + L, 2 N L): the budgets of the clients, and the counts of the layers."""
        n, layers = self.clients, self.layers
        per_client = sparse.kron(sparse.eye_array(n), np.ones((1, layers)))
        per_layer = sparse.kron(np.ones((1, n)), sparse.eye_array(layers))
        slots = -sparse.kron(sparse.eye_array(layers), np.ones((1, n)))
        return sparse.csc_array(sparse.block_array([[per_client, None], [per_layer, slots]]))

    @cached_property
    def right_side(self) -> np.ndarray:
        return np.concatenate([self.problem.budgets, np.zeros(self.layers)])

    def best_at(self, price: float) -> np.ndarray:
        """Return the assignment (N, L) of the largest importance - price * sum_l n_l^2."""
        return self._assignment(self._relaxed(price))

    def undecided(self, price: float, slack: float) -> Bounds:
        """Return bounds that exclude what is worse than the optimum of `best_at(price)` by more than `slack`.

        The marginal of a variable at its bound says how much the optimum worsens at least when the variable leaves it.
        """
        solution = self._relaxed(price)
        slack = slack / self.unit + 1e-6
        return Bounds(
            np.where(solution.upper.marginals < -slack, 1.0, 0.0), np.where(solution.lower.marginals > slack, 0.0, 1.0)
        )

    def best_within(self, squares: int, bounds: Bounds) -> np.ndarray:
        """Return the most important assignment (N, L) with sum_l n_l^2 <= squares, within bounds from `undecided`."""
        solution = milp(
            self.loss,
            constraints=[
                LinearConstraint(self.matrix, self.right_side, self.right_side),
                LinearConstraint(self.squares[None], -np.inf, squares + 0.5),
            ],
            # with whole m the cheapest y is whole by itself, because each further client on a layer costs more
            integrality=np.repeat([1, 0], self.clients * self.layers),
            bounds=bounds,
            options={"mip_rel_gap": 0},
        )
        return self._assignment(solution)

    def _relaxed(self, price: float) -> OptimizeResult:
        objective = self.loss + price / self.unit * self.squares
        # the dual simplex method ends in a vertex; an interior point would be a mixture of assignments
        return linprog(objective, A_eq=self.matrix, b_eq=self.right_side, bounds=(0, 1), method="highs-ds")

    def _assignment(self, solution: OptimizeResult) -> np.ndarray:
        if solution.x is None:
            raise FedpeftError(f"HiGHS found no schedule ({solution.message}): choose another solver for these scores.")
        return solution.x[: self.clients * self.layers].reshape(self.clients, self.layers) > 0.5


@dataclass(frozen=True, kw_only=True)
class ExactSettings:
    """Settings of `exact`.

    Args:
        full: add the unsupported assignments, which are not optimal for any weights of the two objectives. Each costs
            an integer program: seconds for 10 clients, out of reach for 100 clients and 32 layers. A job is refused
            that sets it; it is for programs of your own.
        method: how the supported ones are computed, with the same result: `paths`, or `linear_program`
            (HiGHS), which is slower and serves as a check.
    """

    unbounded: ClassVar[tuple[str, ...]] = ("full",)  # no job may set it

    full: bool = False
    method: str = "paths"

    def __post_init__(self) -> None:
        if not isinstance(self.full, bool):
            raise FedpeftError(f"full is {self.full!r}, allowed are True and False.")
        one_of("method", self.method, ("paths", "linear_program"))


def exact_front(scores: np.ndarray, budgets: np.ndarray | int, full: bool = False) -> Front:
    """Return the exact front: the vertices of its convex hull, or with `full` every point.

    Args:
        scores: (N, L) importance of layer l at client i.
        budgets: (N,) layers that each client trains, or one number for all.
        full: add the points inside the hull.

    Raises:
        FedpeftError: as for `schedule`.

    Example:
        >>> exact_front([[0.75, 0.25], [0.875, 0.125]], 1).importance.tolist()
        [1.125, 1.625]
    """
    return search(build_problem(scores, budgets), np.random.default_rng(0), ExactSettings(full=full))


def search(problem: Problem, rng: np.random.Generator, settings: ExactSettings) -> Front:
    """Find the exact front; nothing is drawn from `rng`."""
    archive = Archive(problem)
    masks = supported(problem) if settings.method == "paths" else _dichotomy(problem)
    archive.evaluate(np.stack(list(masks)))
    hull = _vertices(archive.front(), problem.resolution)
    if not settings.full:
        return hull
    inside = list(_unsupported(problem, hull))
    if inside:
        archive.evaluate(np.stack(inside))
    return archive.front()


def _dichotomy(problem: Problem) -> Iterator[np.ndarray]:
    """Yield supported assignments by linear programs: between two known ones, the best for the slope between them."""
    program = LinearProgram(problem)
    gap = problem.resolution
    heaviest = 2 * float(np.abs(problem.scores).sum()) or 1.0  # one square less outweighs all importance
    ends = [_point(problem, program.best_at(price)) for price in (0.0, heaviest)]
    yield from (mask for mask, _, _ in ends)
    open_pairs = [tuple(ends)]
    while open_pairs:
        upper, lower = open_pairs.pop()
        if upper[2] - lower[2] <= 2:  # squares have one parity: nothing is between
            continue
        price = (upper[1] - lower[1]) / (upper[2] - lower[2])
        between = _point(problem, program.best_at(price))
        if between[1] - price * between[2] > upper[1] - price * upper[2] + gap:
            yield between[0]
            open_pairs += [(upper, between), (between, lower)]


def _unsupported(problem: Problem, hull: Front) -> Iterator[np.ndarray]:
    """Yield, between each two neighbors on the hull, every assignment of higher importance than the lower one."""
    program = LinearProgram(problem)
    points = [_point(problem, mask) for mask in hull.masks]
    for lower, upper in pairwise(points):
        squares = upper[2] - 2  # all have one parity
        if squares <= lower[2]:
            continue
        price = (upper[1] - lower[1]) / (upper[2] - lower[2])
        bounds = program.undecided(price, slack=price * (squares - lower[2]))
        while squares > lower[2]:
            between = _point(problem, program.best_within(squares, bounds))
            if between[1] <= lower[1] + problem.resolution:
                break
            yield between[0]
            squares = between[2] - 2


def _point(problem: Problem, mask: np.ndarray) -> tuple[np.ndarray, float, int]:
    """Return an assignment with its importance and its sum of squared counts."""
    counts = mask.sum(axis=0)
    return mask, float(problem.scores[mask].sum()), int((counts * counts).sum())


def _vertices(front: Front, resolution: float) -> Front:
    """Return the front without the points on or below the line between two others."""
    kept: list[int] = []
    for index in range(len(front)):
        while len(kept) > 1 and _rises(front, kept[-2], kept[-1], index, resolution):
            kept.pop()
        kept.append(index)
    return Front(
        masks=front.masks[kept],
        importance=front.importance[kept],
        variance=front.variance[kept],
        evaluations=front.evaluations,
    )


def _rises(front: Front, first: int, middle: int, last: int, resolution: float) -> bool:
    """Return whether the middle one of three points is on or below the line between the outer two."""
    share = (front.variance[middle] - front.variance[first]) / (front.variance[last] - front.variance[first])
    line = front.importance[first] + share * (front.importance[last] - front.importance[first])
    return front.importance[middle] <= line + resolution

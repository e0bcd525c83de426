# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Compute the exact front: supported assignments by shortest paths or linear programs, others by integer programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import one_of
from fedpeft.scheduling.front import Archive, Front
from fedpeft.scheduling.linear_program import LinearProgram
from fedpeft.scheduling.paths import supported
from fedpeft.scheduling.problem import Problem, problem


@dataclass(frozen=True, kw_only=True)
class ExactSettings:
    """Settings of ``exact``.

    Args:
        full: add the unsupported assignments, which are not optimal for any weights of the two objectives. Each costs
            an integer program: seconds for 10 clients, out of reach for 100 clients and 32 layers.
        method: how the supported ones are computed, with the same result: ``paths``, or ``linear_program``
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
    """Return the exact front: the vertices of its convex hull, or with ``full`` every point.

    Args:
        scores: (N, L) importance of layer l at client i.
        budgets: (N,) layers that each client trains, or one number for all.
        full: add the points inside the hull.

    Raises:
        FedpeftError: as for ``schedule``.
    """
    return search(problem(scores, budgets), np.random.default_rng(0), ExactSettings(full=full))


def search(task: Problem, rng: np.random.Generator, settings: ExactSettings) -> Front:
    """Find the exact front; nothing is drawn from ``rng``."""
    archive = Archive(task)
    masks = supported(task) if settings.method == "paths" else _dichotomy(task)
    archive.evaluate(np.stack(list(masks)))
    hull = _vertices(archive.front(), task.resolution)
    if not settings.full:
        return hull
    inside = list(_unsupported(task, hull))
    if inside:
        archive.evaluate(np.stack(inside))
    return archive.front()


def _dichotomy(task: Problem) -> Iterator[np.ndarray]:
    """Yield supported assignments by linear programs: between two known ones, the best for the slope between them."""
    program = LinearProgram(task)
    gap = task.resolution
    heaviest = 2 * float(np.abs(task.scores).sum()) or 1.0  # one square less outweighs all importance
    ends = [_point(task, program.weighted(price)) for price in (0.0, heaviest)]
    yield from (mask for mask, _, _ in ends)
    open_pairs = [tuple(ends)]
    while open_pairs:
        upper, lower = open_pairs.pop()
        if upper[2] - lower[2] <= 2:  # squares have one parity: nothing lies between
            continue
        price = (upper[1] - lower[1]) / (upper[2] - lower[2])
        between = _point(task, program.weighted(price))
        if between[1] - price * between[2] > upper[1] - price * upper[2] + gap:
            yield between[0]
            open_pairs += [(upper, between), (between, lower)]


def _unsupported(task: Problem, hull: Front) -> Iterator[np.ndarray]:
    """Yield, between each two neighbors on the hull, every assignment of higher importance than the lower one."""
    program = LinearProgram(task)
    points = [_point(task, mask) for mask in hull.masks]
    for lower, upper in pairwise(points):
        squares = upper[2] - 2  # all have one parity
        if squares <= lower[2]:
            continue
        price = (upper[1] - lower[1]) / (upper[2] - lower[2])
        bounds = program.undecided(price, slack=price * (squares - lower[2]))
        while squares > lower[2]:
            between = _point(task, program.within(squares, bounds))
            if between[1] <= lower[1] + task.resolution:
                break
            yield between[0]
            squares = between[2] - 2


def _point(task: Problem, mask: np.ndarray) -> tuple[np.ndarray, float, int]:
    """Return an assignment with its importance and its sum of squared counts."""
    counts = mask.sum(axis=0)
    return mask, float(task.scores[mask].sum()), int((counts * counts).sum())


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

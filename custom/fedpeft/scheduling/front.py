# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The Pareto front: assignments that no other beats in both importance and variance; choosing from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpeft.core.errors import FedpeftError
from fedpeft.scheduling.problem import Problem, evaluate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Front:
    """Assignments that do not dominate each other, from the most balanced to the most important.

    Args:
        masks: (F, N, L) bool, whether client i trains layer l.
        importance: (F,) rising.
        variance: (F,) of the number of clients per layer, rising.
        evaluations: number of assignments whose importance and variance the solver computed.
    """

    masks: np.ndarray
    importance: np.ndarray
    variance: np.ndarray
    evaluations: int

    def __len__(self) -> int:
        return len(self.masks)

    def __repr__(self) -> str:
        count, clients, layers = self.masks.shape
        spans = [f"{values[0]:.4g} to {values[-1]:.4g}" for values in (self.importance, self.variance)]
        return (
            f"Front({count} assignments of {clients} clients to {layers} layers, importance {spans[0]}, "
            f"variance {spans[1]}, {self.evaluations} evaluations)"
        )

    def plot(self, axes: Axes | None = None, **style: Any) -> Axes:
        """Draw the front, importance against variance, and return the axes; every point is one assignment.

        Args:
            axes: where to draw; default: a new figure of pyplot.
            style: of matplotlib's `Axes.plot`, for instance `label="nsga2"`.
        """
        if axes is None:
            from matplotlib import pyplot

            axes = pyplot.subplots()[1]
        look: dict[str, Any] = {"marker": "o", "drawstyle": "steps-pre", "linewidth": 0.8} | style
        axes.plot(self.importance, self.variance, **look)
        axes.set(xlabel="importance", ylabel="variance")
        return axes


class Archive:
    """Evaluates assignments, counts them, and keeps those that none dominates; every solver uses one."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.evaluations = 0
        self.masks = np.empty((0, *problem.scores.shape), dtype=bool)
        self.importance = np.empty(0)
        self.variance = np.empty(0)

    def evaluate(self, masks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return importance and variance (P,) of assignments (P, N, L); those that none dominates enter the archive."""
        importance, variance = evaluate(self.problem, masks)
        self.evaluations += len(masks)
        # an assignment enters only if it is more important than all of the archive with at most its variance
        reached = np.append(-math.inf, self.importance)[np.searchsorted(self.variance, variance, side="right")]
        new = importance > reached + self.problem.resolution
        if new.any():
            self.importance = np.concatenate([self.importance, importance[new]])
            self.variance = np.concatenate([self.variance, variance[new]])
            kept = non_dominated(self.importance, self.variance, resolution=self.problem.resolution)
            self.importance, self.variance = self.importance[kept], self.variance[kept]
            self.masks = np.concatenate([self.masks, masks[new]])[kept]
        return importance, variance

    def front(self) -> Front:
        """Return the archive's assignments as a front."""
        return Front(masks=self.masks, importance=self.importance, variance=self.variance, evaluations=self.evaluations)


def non_dominated(importance: np.ndarray, variance: np.ndarray, *, resolution: float = 0.0) -> np.ndarray:
    """Return the indices of the points that none dominates, from low to high variance; the first of equal points.

    A gain in importance up to `resolution` counts as none.
    """
    order = np.lexsort((-importance, variance))
    highest = np.maximum.accumulate(importance[order])
    order = order[np.append(True, highest[1:] > highest[:-1])]
    if (np.diff(importance[order]) > resolution).all():
        return order
    kept = [int(order[0])]
    for index in order[1:].tolist():
        if importance[index] > importance[kept[-1]] + resolution:
            kept.append(index)
    return np.array(kept, dtype=np.int64)


def choose(front: Front, weight_importance: float = 1.0, weight_diversity: float = 1.0) -> np.ndarray:
    """Return the assignment (N, L) bool of the largest weight_importance * importance - weight_diversity * variance.

    Both objectives are first scaled to [0, 1] over the front; the most balanced of equally good assignments is taken.

    Args:
        front: a solver's result.
        weight_importance: at least 0.
        weight_diversity: at least 0; (1, 0) is every client's best layers, (0, 1) the most even use of the layers.

    Raises:
        FedpeftError: a weight is negative or not finite, or both are 0.

    Source: F3OCUS, Algorithms 34 and 45 (on unscaled objectives, with the standard deviation).

    Example:
        >>> from fedpeft.scheduling import choose, exact_front
        >>> choose(exact_front([[0.7, 0.3], [0.6, 0.4]], 1), weight_importance=0).sum(axis=0).tolist()
        [1, 1]
    """
    for name, weight in (("weight_importance", weight_importance), ("weight_diversity", weight_diversity)):
        if not (math.isfinite(weight) and weight >= 0):
            raise FedpeftError(f"{name} is {weight!r}, it must be a finite number of at least 0.")
    if weight_importance == weight_diversity == 0:
        raise FedpeftError("weight_importance and weight_diversity are both 0, one of them must be above 0.")
    score = weight_importance * _scaled(front.importance) - weight_diversity * _scaled(front.variance)
    return front.masks[int(score.argmax())].copy()


def nadir(front: Front) -> tuple[float, float]:
    """Return the lowest importance and highest variance on the front, the strictest reference for `hypervolume`.

    Example:
        >>> from fedpeft.scheduling import exact_front
        >>> nadir(exact_front([[0.75, 0.25], [0.5, 0.5]], 1))
        (1.25, 0.0)
    """
    return float(front.importance[0]), float(front.variance[-1])


def hypervolume(front: Front, reference: tuple[float, float]) -> float:
    """Return the area that the front dominates, up to a reference point.

    Args:
        front: a solver's result.
        reference: (importance, variance); points that do not surpass it in both do not count.

    Example:
        >>> from fedpeft.scheduling import exact_front
        >>> hypervolume(exact_front([[0.75, 0.25], [0.5, 0.5]], 1), reference=(0.0, 1.0))
        1.25
    """
    gain = np.maximum(front.importance - reference[0], 0)
    width = np.diff(np.append(np.minimum(front.variance, reference[1]), reference[1]))
    return float(gain @ width)


def _scaled(values: np.ndarray) -> np.ndarray:
    span = values[-1] - values[0]
    return (values - values[0]) / span if span > 0 else np.zeros_like(values)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The problem that every solver solves, which layers each client trains, and its two extreme assignments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedpeft.core.errors import FedpeftError

MAX_SUM = 1e307  # of all scores times the number of clients: solvers add and subtract a few such sums


@dataclass(frozen=True, eq=False)
class Problem:
    """Choose m in {0, 1}^(N, L) with row sums b_i.

        maximize  importance = sum_il m_il S_il
        minimize  variance = 1/L sum_l (n_l - mean n)^2,      n_l = sum_i m_il

    Build it with `build_problem`, which checks scores and budgets.

    Source: F3OCUS (CVPR 2025); the supplement prints the standard deviation, which orders assignments alike.
    """

    scores: np.ndarray  # (N, L) float64, importance of layer l at client i
    budgets: np.ndarray  # (N,) int64, layers that client i trains

    @cached_property
    def resolution(self) -> float:
        """The largest difference in importance that counts as rounding, and does not make an assignment better."""
        return 1e-10 * float(np.abs(self.scores).sum())

    @property
    def inclination(self) -> np.ndarray:
        """Probabilities (N, L) in proportion to the scores, for solvers that draw layers; none is 0."""
        shifted = self.scores - np.minimum(self.scores.min(axis=1, keepdims=True), 0)
        total = shifted.sum(axis=1, keepdims=True)
        share = np.divide(shifted, total, out=np.full_like(shifted, 1 / shifted.shape[1]), where=total > 0)
        share = np.maximum(share, 1e-6)
        return share / share.sum(axis=1, keepdims=True)


def build_problem(scores: np.ndarray, budgets: np.ndarray | int, *, clients: Sequence[str] | None = None) -> Problem:
    """Check scores (N, L) and budgets, from 0 to L, and return the problem; `clients` are names for errors."""
    scores, budgets = _numbers("scores", scores), _numbers("budgets", budgets)
    if scores.ndim != 2 or 0 in scores.shape:
        raise FedpeftError(
            f"scores have the shape {scores.shape}, they must be (clients, layers), at least one of each."
        )
    if budgets.ndim == 0:
        budgets = np.full(len(scores), budgets)
    if budgets.shape != scores.shape[:1]:
        raise FedpeftError(
            f"budgets have the shape {budgets.shape}, they must be one number for each of the {len(scores)} clients, "
            f"or one for all."
        )
    if clients is not None and len(clients) != len(scores):
        raise FedpeftError(f"clients has {len(clients)} names for the {len(scores)} rows of scores: name each row.")
    layers = scores.shape[1]
    for i, (row, budget) in enumerate(zip(scores, budgets, strict=True)):
        client = f"client {i}" if clients is None else f"client {clients[i]!r}"
        if not np.isfinite(row).all():
            layer = int(np.flatnonzero(~np.isfinite(row))[0])
            raise FedpeftError(
                f"{client} scores layer {layer} with {row[layer]}, which is not a finite number: leave the client out "
                f"of this round, or find out why its gradients are not finite."
            )
        if budget != np.floor(budget) or not 0 <= budget <= layers:
            raise FedpeftError(
                f"{client} has a budget of {budget:g} layers, it must be a whole number from 0 to {layers}, the number "
                f"of layers."
            )
    largest = float(np.abs(scores).max())
    if largest > MAX_SUM / (scores.size * len(scores)):
        raise FedpeftError(
            f"the largest score is {largest:g}, and sums over {len(scores)} clients and {layers} layers overflow: "
            f"divide all scores by it."
        )
    return Problem(scores, budgets.astype(np.int64))


def evaluate(problem: Problem, masks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return importance and variance of assignments (P, N, L) bool: two arrays (P,).

    Variances are computed from whole numbers and importances in a fixed order of summation: an assignment gives the
    same bits in every batch, and equal spreads compare as equal.
    """
    layers = problem.scores.shape[1]
    counts = masks.sum(axis=1)  # (P, L)
    spread = layers * (counts * counts).sum(axis=1) - counts.sum(axis=1) ** 2
    importance = np.where(masks, problem.scores, 0.0).reshape(len(masks), -1).sum(axis=1)
    return importance, spread / layers**2


def take_top(keys: np.ndarray, budgets: np.ndarray) -> np.ndarray:
    """Select for every client the b_i layers of largest keys, (…, N, L) -> (…, N, L) bool; ties go to the lower layer.

    With random keys this samples without replacement: uniform keys uniformly, log-weights plus Gumbel noise by weight.
    """
    order = np.argsort(-keys, axis=-1, kind="stable")
    mask = np.empty(keys.shape, dtype=bool)
    np.put_along_axis(mask, order, np.arange(keys.shape[-1]) < budgets[:, None], axis=-1)
    return mask


def greedy(problem: Problem) -> np.ndarray:
    """Return the assignment (N, L) of the highest importance: every client's best layers."""
    return take_top(problem.scores, problem.budgets)


def balanced(problem: Problem) -> np.ndarray:
    """Return an assignment (N, L) of the least variance: each client in turn takes its best of the least used."""
    mask = np.zeros(problem.scores.shape, dtype=bool)
    counts = np.zeros(problem.scores.shape[1], dtype=np.int64)
    for i, budget in enumerate(problem.budgets):
        mask[i, np.lexsort((-problem.scores[i], counts))[:budget]] = True
        counts += mask[i]
    return mask


def _numbers(name: str, values: np.ndarray | int) -> np.ndarray:
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise FedpeftError(
            f"{name} are {values!r:.60}, they must be an array of numbers, with rows of one length."
        ) from None

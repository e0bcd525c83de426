# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The exact front by HiGHS: a linear program for supported assignments, an integer program for all others.

    maximize  sum_il m_il S_il - lambda sum_l sum_k (2k - 1) y_lk
    where     sum_l m_il = b_i,    sum_i m_il = sum_k y_lk,    0 <= m, y <= 1

y_lk is the k-th client on layer l; the first costs lambda, the second 3 lambda, … so that n_l clients cost
lambda n_l^2. The matrix is that of a network, hence every optimal vertex is integral.

Source: F3OCUS, SPEC section 4.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.sparse as sparse
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, linprog, milp

from fedpeft.core.errors import FedpeftError
from fedpeft.scheduling.problem import Problem


class LinearProgram:
    """Objectives and constraints of one problem, built once for all values of lambda."""

    def __init__(self, task: Problem) -> None:
        self.task = task
        self.clients, self.layers = task.scores.shape
        # HiGHS stops within an absolute 1e-6 of the optimum: with scores up to 1e4 no real difference is that small
        self.unit = (float(np.abs(task.scores).max()) or 1.0) / 1e4
        self.loss = np.concatenate([-task.scores.ravel() / self.unit, np.zeros(self.clients * self.layers)])
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
        return np.concatenate([self.task.budgets, np.zeros(self.layers)])

    def weighted(self, price: float) -> np.ndarray:
        """Return the assignment (N, L) of the largest importance - price * sum_l n_l^2."""
        return self._assignment(self._relaxed(price))

    def undecided(self, price: float, slack: float) -> Bounds:
        """Return bounds that exclude what is worse than the optimum of ``weighted(price)`` by more than ``slack``.

        The marginal of a variable at its bound says how much the optimum worsens at least when the variable leaves it.
        """
        solution = self._relaxed(price)
        slack = slack / self.unit + 1e-6
        return Bounds(
            np.where(solution.upper.marginals < -slack, 1.0, 0.0), np.where(solution.lower.marginals > slack, 0.0, 1.0)
        )

    def within(self, squares: int, bounds: Bounds) -> np.ndarray:
        """Return the most important assignment (N, L) with sum_l n_l^2 <= squares, within bounds from ``undecided``."""
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

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The supported front by shortest paths: from every client's best layers to balance, always giving up the least.

Assignments are flows from clients over layers to a sink whose arcs cost more with every client, so an assignment is
optimal for ``importance - lambda * sum_l n_l^2`` as long as no chain of exchanges improves it: client i gives up layer
a for c, client j gives up c for …, until one takes up b. Such a chain lowers n_a by one, raises n_b by one, leaves
every other count alone, and so changes sum_l n_l^2 by -2 (n_a - n_b - 1). The chain that loses least importance for
each unit of that gives the next lambda at which the optimum changes, and the optimum it changes to: the walk meets
every vertex of the convex hull of the front, and no lambda has to be guessed.

Source: the successive shortest path method for flows of convex cost, Ahuja, Magnanti and Orlin, Network Flows (1993),
chapters 9 and 14. Tests compare it with the linear program of ``linear_program.py`` and with enumeration.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedpeft.scheduling.problem import Problem, greedy


def supported(task: Problem) -> Iterator[np.ndarray]:
    """Optimal assignments (N, L) for lambda from 0 to infinity, from the most important to the most balanced.

    Some may lie on an edge of the hull, and the first few may be equally important: the caller sorts them out.
    """
    chosen = greedy(task)
    while True:
        yield chosen.copy()
        best, giver = _exchanges(task.scores, chosen)
        loss, following = _shortest_paths(best)
        counts = chosen.sum(axis=0)
        relief = 2 * (counts[:, None] - counts[None, :] - 1)
        rate = np.divide(loss, relief, out=np.full(loss.shape, np.inf), where=relief > 0)
        layer, last = np.unravel_index(rate.argmin(), rate.shape)
        if not np.isfinite(rate[layer, last]):
            return
        while layer != last:
            target = following[layer, last]
            chosen[giver[layer, target], [layer, target]] = False, True
            layer = target


def _exchanges(scores: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least loss (L, L) of importance for which some client gives up layer a for b, and that client (L, L)."""
    gives = np.where(chosen, scores, np.inf)
    takes = np.where(chosen, -np.inf, scores)
    losses = gives[:, :, None] - takes[:, None, :]  # (N, L, L)
    giver = losses.argmin(axis=0)
    return np.take_along_axis(losses, giver[None], axis=0)[0], giver


def _shortest_paths(length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Floyd and Warshall: distances (L, L), and the step after a on the way to b (L, L)."""
    distance = length.copy()
    following = np.tile(np.arange(len(length)), (len(length), 1))
    # an optimal assignment has no profitable circle: what rounding makes look like one must not become a path
    noise = 1e-14 * np.abs(length[np.isfinite(length)]).max(initial=0.0)
    for middle in range(len(length)):
        detour = distance[:, middle, None] + distance[None, middle, :]
        shorter = detour < distance - noise
        distance[shorter] = detour[shorter]
        following = np.where(shorter, following[:, middle, None], following)
    return distance, following

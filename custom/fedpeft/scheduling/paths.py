# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Compute the supported front by shortest paths, from every client's best layers to an even use of the layers.

Assignments are flows from clients over layers to a sink whose arcs cost more with every client, so an assignment is
optimal for ``importance - lambda * sum_l n_l^2`` as long as no chain of exchanges improves it: client i exchanges layer
a for c, client j exchanges c for …, until one takes b. Such a chain lowers n_a by one, raises n_b by one, leaves all
other counts as they are, and so changes sum_l n_l^2 by -2 (n_a - n_b - 1). The chain that loses least importance per
unit of that change gives the next lambda at which the optimum changes, and the new optimum: the walk reaches every
vertex of the convex hull of the front without trying values of lambda.

Source: the successive shortest path method for flows of convex cost, Ahuja, Magnanti and Orlin, Network Flows (1993),
chapters 9 and 14. Tests compare it with the linear program of ``linear_program.py`` and with enumeration.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedpeft.scheduling.problem import Problem, greedy


def supported(task: Problem) -> Iterator[np.ndarray]:
    """Yield optimal assignments (N, L) for lambda from 0 to infinity, from the most important to the most balanced.

    Some may lie on an edge of the hull, and the first few may be equally important; the caller removes these.
    """
    mask = greedy(task)
    while True:
        yield mask.copy()
        best, giver = _exchanges(task.scores, mask)
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
    """Return the least loss (L, L) of importance at which a client exchanges layer a for b, and that client (L, L)."""
    gives = np.where(mask, scores, np.inf)
    takes = np.where(mask, -np.inf, scores)
    losses = gives[:, :, None] - takes[:, None, :]  # (N, L, L)
    giver = losses.argmin(axis=0)
    return np.take_along_axis(losses, giver[None], axis=0)[0], giver


def _shortest_paths(length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return distances (L, L), and the step after a on the way to b (L, L), by Floyd and Warshall's algorithm."""
    distance = length.copy()
    following = np.tile(np.arange(len(length)), (len(length), 1))
    # an optimal assignment has no profitable cycle: one that exists only by rounding must not become a path
    noise = 1e-14 * np.abs(length[np.isfinite(length)]).max(initial=0.0)
    for middle in range(len(length)):
        detour = distance[:, middle, None] + distance[None, middle, :]
        shorter = detour < distance - noise
        distance[shorter] = detour[shorter]
        following = np.where(shorter, following[:, middle, None], following)
    return distance, following

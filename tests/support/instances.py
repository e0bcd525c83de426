# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Instances to schedule, and their exact front by enumeration of all assignments."""

from itertools import combinations, product

import numpy as np

HEURISTICS = ("nsga2", "mopso", "annealing", "ant_colony", "bee_colony")
SOLVERS = (*HEURISTICS, "exact")


def realistic(clients, layers, seed, budget=4):
    """Scores that share a profile over the layers, rows summing to 1, and equal budgets."""
    rng = np.random.default_rng(seed)
    scores = np.exp(rng.normal(size=layers) + 0.7 * rng.normal(size=(clients, layers)))
    return scores / scores.sum(axis=1, keepdims=True), np.full(clients, budget)


def small(seed):
    """Up to 8 clients and 5 layers with any budgets; every third instance has many equal scores."""
    rng = np.random.default_rng(seed)
    clients, layers = rng.integers(2, 9), rng.integers(3, 6)
    scores = np.exp(1.5 * rng.normal(size=layers) + 0.7 * rng.normal(size=(clients, layers)))
    return (scores if seed % 3 else np.round(scores)), rng.integers(0, layers + 1, clients)


ODD = {
    "budget 0": (np.random.default_rng(0).random((3, 5)), [0, 0, 0]),
    "budget = L": (np.random.default_rng(1).random((3, 5)), [5, 5, 5]),
    "budgets 0, L and between": (np.random.default_rng(2).random((4, 5)), [0, 5, 2, 3]),
    "one client": (np.random.default_rng(3).random((1, 6)), [2]),
    "one layer": (np.random.default_rng(4).random((5, 1)), [1, 0, 1, 1, 0]),
    "one client, one layer": (np.ones((1, 1)), [1]),
    "equal scores": (np.full((4, 6), 1 / 6), [2, 2, 3, 1]),
    "scores 0": (np.zeros((4, 6)), [2, 2, 3, 1]),
    "negative scores": (np.random.default_rng(5).normal(size=(4, 6)), [2, 2, 3, 1]),
    "huge and tiny scores": (10.0 ** np.random.default_rng(6).integers(-12, 12, (4, 6)), [2, 2, 3, 1]),
    "one layer that all want": (np.eye(6)[[0, 0, 0, 0]], [1, 1, 1, 1]),
}


def enumerated(scores, budgets):
    """{variance: highest importance} of all assignments, without what is dominated; variances rise.

    Client by client, every choice of layers; of those with equal counts so far only the most important goes on.
    """
    layers = np.shape(scores)[1]
    best = {(0,) * layers: 0.0}
    for row, budget in zip(scores, budgets, strict=True):
        grown = {}
        for (counts, importance), choice in product(best.items(), combinations(range(layers), budget)):
            key = tuple(count + (layer in choice) for layer, count in enumerate(counts))
            value = importance + sum(float(row[layer]) for layer in choice)
            grown[key] = max(value, grown.get(key, -np.inf))
        best = grown
    front, highest = {}, -np.inf
    for variance, importance in sorted((float(np.var(c)), -v) for c, v in best.items()):
        if -importance > highest + 1e-9:
            front[round(variance, 9)] = highest = -importance
    return front


def hull(front):
    """The points of an enumerated front above every line between two others."""
    points = list(front.items())
    return {
        v: i
        for k, (v, i) in enumerate(points)
        if all(
            i > i0 + (v - v0) / (v1 - v0) * (i1 - i0) + 1e-9  #
            for (v0, i0), (v1, i1) in product(points[:k], points[k + 1 :])
        )
    }

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""MOPSO: particle swarm over memberships, attracted by each particle's own best and by the front."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpeft.scheduling.front import Archive, Front
from fedpeft.scheduling.population import PopulationSettings, first_population, require_number
from fedpeft.scheduling.problem import Problem, take_top


@dataclass(frozen=True, kw_only=True)
class MOPSOSettings(PopulationSettings):
    """Settings of ``mopso``; its population are particles.

    Args:
        inertia: share of its velocity that a particle keeps; from 0 to 1.
        cognitive: weight of the best assignment that the particle itself has had; at least 0.
        social: weight of an assignment of the front; at least 0.

    Source: F3OCUS supplement, implementation details.
    """

    inertia: float = 0.5
    cognitive: float = 1.5
    social: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("inertia", self.inertia, low=0, high=1)
        require_number("cognitive", self.cognitive, low=0)
        require_number("social", self.social, low=0)


def search(task: Problem, rng: np.random.Generator, settings: MOPSOSettings) -> Front:
    """Search by moving the particles.

        v <- inertia v + cognitive r1 (own best - x) + social r2 (leader - x)
        x <- for every client the b_i largest of x + v

    x has one entry for each client and layer, 1 where the client trains the layer. (Algorithm 14 moves along layer
    numbers, as if layer 5 were between 4 and 6.) Every particle has its own leader, drawn from the archive; in
    Algorithm 12 all follow one.

    Source: Coello Coello and Lechuga, MOPSO (2002); F3OCUS, Algorithms 12-18.
    """
    archive = Archive(task)
    position = first_population(task, settings, rng)
    velocity = rng.uniform(-1, 1, size=position.shape)
    best, best_importance, best_variance = position, *archive.evaluate(position)
    for _ in range(settings.iterations):
        leader = archive.masks[rng.integers(len(archive.masks), size=len(position))]
        here = position.astype(np.float64)
        own, common = rng.random((2, *position.shape))
        velocity = settings.inertia * velocity
        velocity += settings.cognitive * own * (best - here) + settings.social * common * (leader - here)
        position = take_top(here + velocity, task.budgets)
        importance, variance = archive.evaluate(position)
        better = (importance >= best_importance) & (variance <= best_variance)
        best = np.where(better[:, None, None], position, best)
        best_importance = np.where(better, importance, best_importance)
        best_variance = np.where(better, variance, best_variance)
    return archive.front()

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Artificial bee colony: half of the bees search near an assignment of their own, half near the archive's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpeft.scheduling.front import Archive, Front
from fedpeft.scheduling.population import PopulationSettings, draw, first_population, require_number, swap_layer
from fedpeft.scheduling.problem import Problem


@dataclass(frozen=True, kw_only=True)
class BeeColonySettings(PopulationSettings):
    """Settings of ``bee_colony``; its population are bees, half employed, half onlookers.

    Args:
        limit: trials without success after which a source is abandoned for a random one; at least 1. The paper has a
            limit but gives no value.

    Source: F3OCUS supplement, implementation details.
    """

    limit: int = 15

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("limit", self.limit, low=1, whole=True)


def search(task: Problem, rng: np.random.Generator, settings: BeeColonySettings) -> Front:
    """Search around the sources of the bees and around the archive.

    Employed bees try a neighbor of their source and keep it if it dominates (Algorithm 39); a bee whose source is
    exhausted becomes a scout and draws a random one instead (Algorithm 38). Onlookers try neighbors of the archive's
    assignments, which are all equally fit. (Algorithm 37 selects a source with a probability in proportion to
    importance minus deviation, which prefers one end of the front and may be negative.)

    Source: Karaboga and Basturk, Artificial bee colony (2007); F3OCUS, Algorithms 35-45.
    """
    archive = Archive(task)
    everyone = first_population(task, settings, rng)
    importance, variance = archive.evaluate(everyone)
    source, importance, variance = everyone[::2], importance[::2], variance[::2]
    trials = np.zeros(len(source), dtype=np.int64)
    onlookers = settings.population - len(source)
    for _ in range(settings.iterations):
        exhausted = trials >= settings.limit
        candidates = swap_layer(task, source, rng)
        candidates[exhausted] = draw(task, int(exhausted.sum()), rng)
        new_importance, new_variance = archive.evaluate(candidates)
        equal = (new_importance == importance) & (new_variance == variance)
        dominates = (new_importance >= importance) & (new_variance <= variance) & ~equal
        taken = dominates | exhausted
        trials = np.where(taken, 0, trials + 1)
        source = np.where(taken[:, None, None], candidates, source)
        importance, variance = np.where(taken, new_importance, importance), np.where(taken, new_variance, variance)
        known = archive.masks[rng.integers(len(archive.masks), size=onlookers)]
        archive.evaluate(swap_layer(task, known, rng))
    return archive.front()

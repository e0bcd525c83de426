# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Simulated annealing: many chains in parallel, each with its own weights of the two objectives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpeft.core.errors import FedpeftError
from fedpeft.scheduling.front import Archive, Front
from fedpeft.scheduling.population import PopulationSettings, first_population, require_number, swap_layer
from fedpeft.scheduling.problem import Problem

BASIS_POINT = 1e-4


@dataclass(frozen=True, kw_only=True)
class AnnealingSettings(PopulationSettings):
    """Settings of ``annealing``; its population are chains.

    Args:
        initial_temperature: in basis points (1/10,000) of the span of each objective over the first front; above 0.
        final_temperature: at or below it only better neighbors are accepted; at least 0.
        cooling: factor of the temperature after each iteration; above 0, at most 1.

    Source: F3OCUS supplement, implementation details; the unit is ours, see ``search``.
    """

    initial_temperature: float = 100.0
    final_temperature: float = 1.0
    cooling: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("initial_temperature", self.initial_temperature, low=0)
        require_number("final_temperature", self.final_temperature, low=0)
        require_number("cooling", self.cooling, low=0, high=1)
        for name in ("initial_temperature", "cooling"):
            if getattr(self, name) == 0:
                raise FedpeftError(f"{name} is 0, it must be above 0.")


def search(task: Problem, rng: np.random.Generator, settings: AnnealingSettings) -> Front:
    """Move each chain to a neighbor that is better, or, where the neighbor is worse, with the probability

        exp(gain / T),      gain = 2 w_p (importance gained) + 2 (1 - w_p) (variance lost)

    both as shares of their spans over the first front, w_p from 1 for the first chain to 0 for the last. Algorithm 25
    has the opposite sign, so that it prefers worse neighbors, and does not scale: sums of scores differ by about 1, so
    at temperatures from 100 to 36, where 20 iterations end, all would be accepted. A neighbor differs in one layer of
    one client (Algorithm 41); Algorithm 21 redraws all layers of that client.

    Source: F3OCUS, Algorithms 19-26, where a single chain walks 20 steps.
    """
    archive = Archive(task)
    current = first_population(task, settings, rng)
    importance, variance = archive.evaluate(current)
    spans = [float(np.ptp(values)) or 1.0 for values in (archive.importance, archive.variance)]
    weight = np.linspace(1, 0, settings.population)
    temperature = settings.initial_temperature
    for _ in range(settings.iterations):
        neighbor = swap_layer(task, current, rng)
        new_importance, new_variance = archive.evaluate(neighbor)
        dominates = (new_importance >= importance) & (new_variance <= variance)
        gain = (
            2 * weight * (new_importance - importance) / spans[0]
            + 2 * (1 - weight) * (variance - new_variance) / spans[1]
        )
        drawn = rng.random(len(gain)) < np.exp(np.minimum(gain, 0) / (BASIS_POINT * temperature))
        accepted = dominates | (drawn & (temperature > settings.final_temperature)) | (gain > 0)
        current = np.where(accepted[:, None, None], neighbor, current)
        importance = np.where(accepted, new_importance, importance)
        variance = np.where(accepted, new_variance, variance)
        temperature *= settings.cooling
    return archive.front()

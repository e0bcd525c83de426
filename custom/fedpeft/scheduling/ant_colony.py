# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Ant colonies: layers drawn by importance and pheromone, one colony for each part of the front."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpeft.core.errors import FedpeftError
from fedpeft.scheduling.front import Archive, Front
from fedpeft.scheduling.population import PopulationSettings, first_population, require_number
from fedpeft.scheduling.problem import Problem, take_top


@dataclass(frozen=True, kw_only=True)
class AntColonySettings(PopulationSettings):
    """Settings of ``ant_colony``; its population are ants.

    Args:
        evaporation: share of the pheromone that an iteration loses; from 0 to below 1.
        deposit: pheromone that each assignment of the archive adds to its clients' layers; at least 0.
        initial_pheromone: above 0.
        alpha: exponent of the pheromone; at least 0.
        beta: exponent of the scores; at least 0.
        colonies: parts of the archive, each with its own pheromone and share of the ants, at most the population; 1
            is the paper, whose ants all follow one trail to the middle of the front.

    Source: F3OCUS supplement, implementation details; colonies: Iredi, Merkle and Middendorf, Bi-criterion optimization
        with multi colony ant algorithms (2001).
    """

    evaporation: float = 0.1
    deposit: float = 1.0
    initial_pheromone: float = 0.1
    alpha: float = 1.0
    beta: float = 2.0
    colonies: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("evaporation", self.evaporation, low=0, high=1)
        for name in ("deposit", "initial_pheromone", "alpha", "beta"):
            require_number(name, getattr(self, name), low=0)
        require_number("colonies", self.colonies, low=1, high=self.population, whole=True)
        if self.evaporation == 1:
            raise FedpeftError("evaporation is 1, it must be below 1, or no trail remains.")
        if self.initial_pheromone == 0:
            raise FedpeftError("initial_pheromone is 0, it must be above 0, or no layer can be drawn.")


def search(task: Problem, rng: np.random.Generator, settings: AntColonySettings) -> Front:
    """Draw assignments, the layers of each client one by one in proportion to

        pheromone[colony, i, l]^alpha * score[i, l]^beta

    Source: F3OCUS, Algorithms 27-34, with pheromone per client and layer.
    """
    archive = Archive(task)
    desire = settings.beta * np.log(task.inclination)
    colony = np.arange(settings.population) * settings.colonies // settings.population
    pheromone = np.full((settings.colonies, *task.scores.shape), settings.initial_pheromone)

    def walk() -> np.ndarray:
        trails = settings.alpha * np.log(pheromone) + desire
        return take_top(trails[colony] + rng.gumbel(size=(len(colony), *desire.shape)), task.budgets)

    archive.evaluate(walk() if settings.start == "random" else first_population(task, settings, rng))
    for _ in range(settings.iterations):
        # the archive runs from balanced to important; with fewer assignments than colonies, neighbors share one
        parts = np.arange(settings.colonies) * len(archive.masks) // settings.colonies
        pheromone *= 1 - settings.evaporation
        pheromone += settings.deposit * np.add.reduceat(archive.masks, parts, axis=0, dtype=np.float64)
        archive.evaluate(walk())
    return archive.front()

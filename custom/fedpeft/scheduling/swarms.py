# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Three heuristics of swarms: ant colonies, bee colonies, particles.

Ant colonies: layers drawn by importance and pheromone, one colony for each part of the front.

Artificial bee colony: half of the bees search near an assignment of their own, half near the archive's.

MOPSO: particle swarm over memberships, attracted by each particle's own best and by the front.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpeft.core.errors import FedpeftError
from fedpeft.scheduling.front import Archive, Front
from fedpeft.scheduling.population import PopulationSettings, draw, first_population, require_number, swap_layer
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


def ant_colony(task: Problem, rng: np.random.Generator, settings: AntColonySettings) -> Front:
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


def bee_colony(task: Problem, rng: np.random.Generator, settings: BeeColonySettings) -> Front:
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


def mopso(task: Problem, rng: np.random.Generator, settings: MOPSOSettings) -> Front:
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

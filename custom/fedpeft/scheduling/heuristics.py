# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Four of the five heuristics, and the settings, first population and moves that all share; `nsga2` is the fifth.

annealing    many chains in parallel, each with its own weights of the two objectives
ant_colony   layers drawn by importance and pheromone, one colony for each part of the front
bee_colony   half of the bees search near their own assignment, half near those of the archive
mopso        particles that move towards their own best assignment and towards the front
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import check_ranges, check_types, one_of, within
from fedpeft.scheduling.front import Archive, Front
from fedpeft.scheduling.problem import Problem, balanced, greedy, take_top

SWEEPS = 2  # of best responses; a third gains little
MAX_POPULATION, MAX_ITERATIONS, MAX_EVALUATIONS = 10_000, 10_000, 200_000  # a job sets them, and the server computes

BASIS_POINT = 1e-4
MAX_WEIGHT = 1000.0  # of what a solver multiplies or raises to a power; larger ones leave the numbers of a float
SMALLEST = sys.float_info.min


@dataclass(frozen=True, kw_only=True)
class PopulationSettings:
    """Settings of all heuristics; each evaluates population * (iterations + 1) assignments.

    Args:
        population: assignments evaluated together; from 2 to 10,000.
        iterations: from 1 to 10,000.
        start: `random` draws the first population by the scores (the paper). `ends` adds the importance-greedy and the
            balanced assignment. `path` fills it with assignments on the path from the one to the other.

    Source: F3OCUS supplement, implementation details (population 50, 20 iterations).
    """

    population: int = field(default=50, metadata=within(2, MAX_POPULATION))
    iterations: int = field(default=20, metadata=within(1, MAX_ITERATIONS))
    start: str = "path"

    def __post_init__(self) -> None:
        check_types(type(self), vars(self), section=type(self).__name__, source="the call")
        check_ranges(self)
        one_of("start", self.start, ("random", "ends", "path"))
        if self.population * self.iterations > MAX_EVALUATIONS:
            raise FedpeftError(
                f"population {self.population} times iterations {self.iterations} is above {MAX_EVALUATIONS:,}: lower "
                f"one of them."
            )


def first_population(problem: Problem, settings: PopulationSettings, rng: np.random.Generator) -> np.ndarray:
    """Return the assignments (P, N, L) that a heuristic starts from."""
    if settings.start == "path":
        return path(problem, settings.population, rng)
    masks = draw(problem, settings.population, rng)
    if settings.start == "ends":
        masks[0], masks[-1] = greedy(problem), balanced(problem)
    return masks


def draw(problem: Problem, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw assignments (count, N, L), layers one by one in proportion to the scores (Algorithms 3 and 36)."""
    noise = rng.gumbel(size=(count, *problem.scores.shape))
    return take_top(np.log(problem.inclination) + noise, problem.budgets)


def path(problem: Problem, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return assignments (count, N, L) from greedy to balanced; each client in turn answers the others best.

    Assignment p maximizes `importance - price_p * sum_l n_l^2`, one client at a time in random order. The prices start
    at 0 (greedy). Then come those where one client of the greedy assignment would exchange one layer for another, and
    at last one that outweighs all importance (balanced).
    """
    clients, layers = problem.scores.shape
    prices = np.concatenate([[0.0], _exchange_prices(problem, count - 2), [2 * np.abs(problem.scores).sum() + 1]])
    rows = np.arange(count)
    masks = np.zeros((count, clients, layers), dtype=bool)
    counts = np.zeros((count, layers))
    for _ in range(SWEEPS):
        for client in rng.permuted(np.tile(np.arange(clients), (count, 1)), axis=1).T:  # (count,): one of each
            counts -= masks[rows, client]
            worth = problem.scores[client] - prices[:, None] * (2 * counts + 1)
            masks[rows, client] = take_top(worth, problem.budgets[client])
            counts += masks[rows, client]
    return masks


def redraw_client(problem: Problem, masks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return copies (P, N, L) where one random client has random layers (Algorithms 11 and 21)."""
    rows = np.arange(len(masks))
    client = rng.integers(masks.shape[1], size=len(masks))
    moved = masks.copy()
    moved[rows, client] = take_top(rng.random((len(masks), masks.shape[2])), problem.budgets[client])
    return moved


def swap_layer(problem: Problem, masks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return copies (P, N, L) where one random client exchanges one of its layers for another (Algorithm 41).

    Clients that train all layers or none cannot exchange; without any other client the copies are unchanged.
    """
    moved = masks.copy()
    free = np.flatnonzero((problem.budgets > 0) & (problem.budgets < masks.shape[2]))
    if len(free):
        rows = np.arange(len(masks))
        client = rng.choice(free, size=len(masks))
        lots = rng.random((len(masks), masks.shape[2]))
        signed = np.where(masks[rows, client], lots, -lots)  # own layers above 0, others below
        moved[rows, client, signed.argmax(axis=1)] = False
        moved[rows, client, signed.argmin(axis=1)] = True
    return moved


def _exchange_prices(problem: Problem, count: int) -> np.ndarray:
    """Return even quantiles (count,) of importance lost per square saved, over single exchanges from greedy."""
    mask = greedy(problem)
    counts = mask.sum(axis=0)
    relief = 2 * (counts[:, None] - counts[None, :] - 1)
    client, dropped, added = np.nonzero(mask[:, :, None] & ~mask[:, None, :] & (relief > 0))
    prices = (problem.scores[client, dropped] - problem.scores[client, added]) / relief[dropped, added]
    return np.quantile(prices, np.linspace(0, 1, count)) if len(prices) else np.zeros(count)


@dataclass(frozen=True, kw_only=True)
class AnnealingSettings(PopulationSettings):
    """Settings of `annealing`; its population are chains.

    Args:
        initial_temperature: in basis points (1/10,000) of the span of each objective over the first front; above 0.
        final_temperature: at or below it only better neighbors are accepted; at least 0.
        cooling: factor of the temperature after each iteration; above 0, at most 1.

    Source: F3OCUS supplement, implementation details; the unit is ours, see `annealing`.
    """

    initial_temperature: float = field(default=100.0, metadata=within(0, exclusive=True))
    final_temperature: float = field(default=1.0, metadata=within(0))
    cooling: float = field(default=0.95, metadata=within(0, 1, exclusive=True))


def annealing(problem: Problem, rng: np.random.Generator, settings: AnnealingSettings) -> Front:
    """Move each chain to a neighbor that is better, or, where the neighbor is worse, with the probability

        exp(gain / T),      gain = 2 w_p (importance gained) + 2 (1 - w_p) (variance lost)

    Both are shares of their spans over the first front; w_p falls from 1 for the first chain to 0 for the last.
    Algorithm 25 has the opposite sign, so that it prefers worse neighbors, and does not scale: sums of scores differ by
    about 1, so temperatures from 100 down to 36, after 20 iterations, would accept all. A neighbor differs in one layer
    of one client (Algorithm 41); Algorithm 21 redraws all layers of that client.

    Source: F3OCUS, Algorithms 19-26, where a single chain walks 20 steps.
    """
    archive = Archive(problem)
    current = first_population(problem, settings, rng)
    importance, variance = archive.evaluate(current)
    spans = [float(np.ptp(values)) or 1.0 for values in (archive.importance, archive.variance)]
    weight = np.linspace(1, 0, settings.population)
    temperature = settings.initial_temperature
    for _ in range(settings.iterations):
        neighbor = swap_layer(problem, current, rng)
        new_importance, new_variance = archive.evaluate(neighbor)
        dominates = (new_importance >= importance) & (new_variance <= variance)
        gain = (
            2 * weight * (new_importance - importance) / spans[0]
            + 2 * (1 - weight) * (variance - new_variance) / spans[1]
        )
        with np.errstate(over="ignore"):  # near temperature 0 the probability is 0
            chance = np.exp(np.minimum(gain, 0) / max(BASIS_POINT * temperature, SMALLEST))
        drawn = rng.random(len(gain)) < chance
        accepted = dominates | (drawn & (temperature > settings.final_temperature)) | (gain > 0)
        current = np.where(accepted[:, None, None], neighbor, current)
        importance = np.where(accepted, new_importance, importance)
        variance = np.where(accepted, new_variance, variance)
        temperature *= settings.cooling
    return archive.front()


@dataclass(frozen=True, kw_only=True)
class AntColonySettings(PopulationSettings):
    """Settings of `ant_colony`; its population are ants.

    Args:
        evaporation: share of the pheromone that an iteration loses; from 0 to below 1.
        deposit: pheromone that each assignment of the archive adds to its clients' layers; from 0 to 1,000.
        initial_pheromone: above 0, at most 1,000.
        alpha: exponent of the pheromone; from 0 to 1,000.
        beta: exponent of the scores; from 0 to 1,000.
        colonies: parts of the archive, each with its own pheromone and share of the ants, at most the population. 1 is
            the paper, whose ants all follow one trail to the middle of the front.

    Source: F3OCUS supplement, implementation details; colonies: Iredi, Merkle and Middendorf, Bi-criterion optimization
        with multi colony ant algorithms (2001).
    """

    evaporation: float = field(default=0.1, metadata=within(0, 1))
    deposit: float = field(default=1.0, metadata=within(0, MAX_WEIGHT))
    initial_pheromone: float = field(default=0.1, metadata=within(0, MAX_WEIGHT, exclusive=True))  # of 0 none is drawn
    alpha: float = field(default=1.0, metadata=within(0, MAX_WEIGHT))
    beta: float = field(default=2.0, metadata=within(0, MAX_WEIGHT))
    colonies: int = field(default=10, metadata=within(1))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.colonies > self.population:
            raise FedpeftError(
                f"colonies is {self.colonies!r}, it must be at most the population, {self.population}.",
                setting="colonies",
            )
        if self.evaporation == 1:
            raise FedpeftError("evaporation is 1, it must be below 1, or no trail remains.", setting="evaporation")


def ant_colony(problem: Problem, rng: np.random.Generator, settings: AntColonySettings) -> Front:
    """Draw assignments, the layers of each client one by one in proportion to

        pheromone[colony, i, l]^alpha * score[i, l]^beta

    Source: F3OCUS, Algorithms 27-34, with pheromone per client and layer.
    """
    archive = Archive(problem)
    desire = settings.beta * np.log(problem.inclination)
    colony = np.arange(settings.population) * settings.colonies // settings.population
    pheromone = np.full((settings.colonies, *problem.scores.shape), settings.initial_pheromone)

    def walk() -> np.ndarray:
        trails = settings.alpha * np.log(np.maximum(pheromone, SMALLEST)) + desire  # it may evaporate to 0
        return take_top(trails[colony] + rng.gumbel(size=(len(colony), *desire.shape)), problem.budgets)

    archive.evaluate(walk() if settings.start == "random" else first_population(problem, settings, rng))
    for _ in range(settings.iterations):
        # the archive runs from balanced to important; with fewer assignments than colonies, neighbors share one
        parts = np.arange(settings.colonies) * len(archive.masks) // settings.colonies
        pheromone *= 1 - settings.evaporation
        pheromone += settings.deposit * np.add.reduceat(archive.masks, parts, axis=0, dtype=np.float64)
        archive.evaluate(walk())
    return archive.front()


@dataclass(frozen=True, kw_only=True)
class BeeColonySettings(PopulationSettings):
    """Settings of `bee_colony`; its population are bees, half employed, half onlookers.

    Args:
        limit: trials without success after which a source is abandoned for a random one; at least 1. The paper has a
            limit but gives no value.

    Source: F3OCUS supplement, implementation details.
    """

    limit: int = field(default=15, metadata=within(1))


def bee_colony(problem: Problem, rng: np.random.Generator, settings: BeeColonySettings) -> Front:
    """Search around the sources of the bees and around the archive.

    Employed bees try a neighbor of their source and keep it if it dominates (Algorithm 39); a bee whose source is
    exhausted becomes a scout and draws a random one instead (Algorithm 38). Onlookers try neighbors of the archive's
    assignments, which are all equally fit. (Algorithm 37 selects a source with a probability in proportion to
    importance minus deviation, which prefers one end of the front and may be negative.)

    Source: Karaboga and Basturk, Artificial bee colony (2007); F3OCUS, Algorithms 35-45.
    """
    archive = Archive(problem)
    first = first_population(problem, settings, rng)
    importance, variance = archive.evaluate(first)
    source, importance, variance = first[::2], importance[::2], variance[::2]
    trials = np.zeros(len(source), dtype=np.int64)
    onlookers = settings.population - len(source)
    for _ in range(settings.iterations):
        exhausted = trials >= settings.limit
        candidates = swap_layer(problem, source, rng)
        candidates[exhausted] = draw(problem, int(exhausted.sum()), rng)
        new_importance, new_variance = archive.evaluate(candidates)
        equal = (new_importance == importance) & (new_variance == variance)
        dominates = (new_importance >= importance) & (new_variance <= variance) & ~equal
        taken = dominates | exhausted
        trials = np.where(taken, 0, trials + 1)
        source = np.where(taken[:, None, None], candidates, source)
        importance, variance = np.where(taken, new_importance, importance), np.where(taken, new_variance, variance)
        known = archive.masks[rng.integers(len(archive.masks), size=onlookers)]
        archive.evaluate(swap_layer(problem, known, rng))
    return archive.front()


@dataclass(frozen=True, kw_only=True)
class MOPSOSettings(PopulationSettings):
    """Settings of `mopso`; its population are particles.

    Args:
        inertia: share of its velocity that a particle keeps; from 0 to 1.
        cognitive: weight of the best assignment that the particle itself has had; from 0 to 1,000.
        social: weight of an assignment of the front; from 0 to 1,000.

    Source: F3OCUS supplement, implementation details.
    """

    inertia: float = field(default=0.5, metadata=within(0, 1))
    cognitive: float = field(default=1.5, metadata=within(0, MAX_WEIGHT))
    social: float = field(default=1.5, metadata=within(0, MAX_WEIGHT))


def mopso(problem: Problem, rng: np.random.Generator, settings: MOPSOSettings) -> Front:
    """Search by moving the particles.

        v <- inertia v + cognitive r1 (own best - x) + social r2 (leader - x)
        x <- for every client the b_i largest of x + v

    x has one entry for each client and layer, 1 where the client trains the layer. (Algorithm 14 moves along layer
    numbers, as if layer 5 were between 4 and 6.) Every particle has its own leader, drawn from the archive; in
    Algorithm 12 all follow one.

    Source: Coello Coello and Lechuga, MOPSO (2002); F3OCUS, Algorithms 12-18.
    """
    archive = Archive(problem)
    position = first_population(problem, settings, rng)
    velocity = rng.uniform(-1, 1, size=position.shape)
    best, best_importance, best_variance = position, *archive.evaluate(position)
    for _ in range(settings.iterations):
        leader = archive.masks[rng.integers(len(archive.masks), size=len(position))]
        here = position.astype(np.float64)
        own, common = rng.random((2, *position.shape))
        velocity = settings.inertia * velocity
        velocity += settings.cognitive * own * (best - here) + settings.social * common * (leader - here)
        position = take_top(here + velocity, problem.budgets)
        importance, variance = archive.evaluate(position)
        better = (importance >= best_importance) & (variance <= best_variance)
        best = np.where(better[:, None, None], position, best)
        best_importance = np.where(better, importance, best_importance)
        best_variance = np.where(better, variance, best_variance)
    return archive.front()

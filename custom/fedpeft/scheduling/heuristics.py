# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the five heuristics share (settings, first population, moves), and four of them; `nsga2` is the fifth.

annealing    many chains in parallel, each with its own weights of the two objectives
ant_colony   layers drawn by importance and pheromone, one colony for each part of the front
bee_colony   half of the bees search near an assignment of their own, half near the archive's
mopso        particle swarm over memberships, attracted by each particle's own best and by the front
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import one_of
from fedpeft.scheduling.front import Archive, Front
from fedpeft.scheduling.problem import Problem, balanced, greedy, take_top

SWEEPS = 2  # of best responses; a third gains little
MAX, MAX_EVALUATIONS = 10_000, 200_000  # a job may set them, and it is the server that computes

BASIS_POINT = 1e-4


@dataclass(frozen=True, kw_only=True)
class PopulationSettings:
    """Settings of all heuristics; each evaluates population * (iterations + 1) assignments.

    Args:
        population: assignments evaluated together; from 2 to 10,000.
        iterations: from 1 to 10,000.
        start: ``random`` draws the first population by the scores (the paper). ``ends`` adds the importance-greedy and
            the balanced assignment. ``path`` fills it with assignments on the path from the one to the other.

    Source: F3OCUS supplement, implementation details (population 50, 20 iterations).
    """

    population: int = 50
    iterations: int = 20
    start: str = "path"

    def __post_init__(self) -> None:
        require_number("population", self.population, low=2, high=MAX, whole=True)
        require_number("iterations", self.iterations, low=1, high=MAX, whole=True)
        one_of("start", self.start, ("random", "ends", "path"))
        if self.population * self.iterations > MAX_EVALUATIONS:
            raise FedpeftError(
                f"population {self.population} times iterations {self.iterations} is above {MAX_EVALUATIONS:,}: lower "
                f"one of them."
            )


def require_number(name: str, value: Any, *, low: float, high: float = math.inf, whole: bool = False) -> None:
    """Refuse a value that is not a finite (whole) number from low to high."""
    kind = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kind) or not math.isfinite(value) or not low <= value <= high:
        limits = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise FedpeftError(f"{name} is {value!r}, it must be a {'whole' if whole else 'finite'} number, {limits}.")


def first_population(task: Problem, settings: PopulationSettings, rng: np.random.Generator) -> np.ndarray:
    """Return the assignments (P, N, L) that a heuristic starts from."""
    if settings.start == "path":
        return path(task, settings.population, rng)
    masks = draw(task, settings.population, rng)
    if settings.start == "ends":
        masks[0], masks[-1] = greedy(task), balanced(task)
    return masks


def draw(task: Problem, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw assignments (count, N, L), layers one by one in proportion to the scores (Algorithms 3 and 36)."""
    noise = rng.gumbel(size=(count, *task.scores.shape))
    return take_top(np.log(task.inclination) + noise, task.budgets)


def path(task: Problem, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return assignments (count, N, L) from greedy to balanced, client by client the best response to the others.

    Assignment p maximizes ``importance - price_p * sum_l n_l^2``, one client at a time in random order. The prices
    rise from 0 (greedy) over those at which one client of the greedy assignment would exchange one layer for another,
    to one that outweighs all importance (balanced).
    """
    clients, layers = task.scores.shape
    prices = np.concatenate([[0.0], _exchange_prices(task, count - 2), [2 * np.abs(task.scores).sum() + 1]])
    everyone = np.arange(count)
    masks = np.zeros((count, clients, layers), dtype=bool)
    counts = np.zeros((count, layers))
    for _ in range(SWEEPS):
        for client in rng.permuted(np.tile(np.arange(clients), (count, 1)), axis=1).T:  # (count,): one of each
            counts -= masks[everyone, client]
            worth = task.scores[client] - prices[:, None] * (2 * counts + 1)
            masks[everyone, client] = take_top(worth, task.budgets[client])
            counts += masks[everyone, client]
    return masks


def redraw_client(task: Problem, masks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return copies (P, N, L) in which one random client has random layers (Algorithms 11 and 21)."""
    everyone = np.arange(len(masks))
    client = rng.integers(masks.shape[1], size=len(masks))
    moved = masks.copy()
    moved[everyone, client] = take_top(rng.random((len(masks), masks.shape[2])), task.budgets[client])
    return moved


def swap_layer(task: Problem, masks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return copies (P, N, L) in which one random client exchanges one of its layers for another (Algorithm 41).

    Clients that train all layers or none cannot exchange; if all are such, the copies are unchanged.
    """
    moved = masks.copy()
    free = np.flatnonzero((task.budgets > 0) & (task.budgets < masks.shape[2]))
    if len(free):
        everyone = np.arange(len(masks))
        client = rng.choice(free, size=len(masks))
        lots = rng.random((len(masks), masks.shape[2]))
        signed = np.where(masks[everyone, client], lots, -lots)  # own layers above 0, others below
        moved[everyone, client, signed.argmax(axis=1)] = False
        moved[everyone, client, signed.argmin(axis=1)] = True
    return moved


def _exchange_prices(task: Problem, count: int) -> np.ndarray:
    """Return even quantiles (count,) of importance lost per square saved, over single exchanges from greedy."""
    mask = greedy(task)
    counts = mask.sum(axis=0)
    relief = 2 * (counts[:, None] - counts[None, :] - 1)
    client, dropped, added = np.nonzero(mask[:, :, None] & ~mask[:, None, :] & (relief > 0))
    prices = (task.scores[client, dropped] - task.scores[client, added]) / relief[dropped, added]
    return np.quantile(prices, np.linspace(0, 1, count)) if len(prices) else np.zeros(count)


@dataclass(frozen=True, kw_only=True)
class AnnealingSettings(PopulationSettings):
    """Settings of ``annealing``; its population are chains.

    Args:
        initial_temperature: in basis points (1/10,000) of the span of each objective over the first front; above 0.
        final_temperature: at or below it only better neighbors are accepted; at least 0.
        cooling: factor of the temperature after each iteration; above 0, at most 1.

    Source: F3OCUS supplement, implementation details; the unit is ours, see ``annealing``.
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


def annealing(task: Problem, rng: np.random.Generator, settings: AnnealingSettings) -> Front:
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


@dataclass(frozen=True, kw_only=True)
class AntColonySettings(PopulationSettings):
    """Settings of ``ant_colony``; its population are ants.

    Args:
        evaporation: share of the pheromone that an iteration loses; from 0 to below 1.
        deposit: pheromone that each assignment of the archive adds to its clients' layers; at least 0.
        initial_pheromone: above 0.
        alpha: exponent of the pheromone; at least 0.
        beta: exponent of the scores; at least 0.
        colonies: parts of the archive, each with its own pheromone and share of the ants, at most the population. 1 is
            the paper, whose ants all follow one trail to the middle of the front.

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

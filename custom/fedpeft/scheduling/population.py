# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the five heuristics share: settings, first population, and moves.

Simulated annealing: many chains in parallel, each with its own weights of the two objectives.
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


@dataclass(frozen=True, kw_only=True)
class PopulationSettings:
    """Settings of all heuristics; each evaluates population * (iterations + 1) assignments.

    Args:
        population: assignments evaluated together; from 2 to 10,000.
        iterations: from 1 to 10,000.
        start: ``random`` draws the first population by the scores (the paper); ``ends`` adds the importance-greedy and
            the balanced assignment; ``path`` fills it with assignments on the path from the one to the other.

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

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""NSGA-II: pymoo's algorithm with operators that keep every client's budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.core.crossover import Crossover
from pymoo.core.mutation import Mutation
from pymoo.core.problem import Problem as Objectives
from pymoo.core.sampling import Sampling
from pymoo.optimize import minimize

from fedpeft.core.settings import within
from fedpeft.scheduling.front import Archive, Front
from fedpeft.scheduling.heuristics import PopulationSettings, first_population, redraw_client
from fedpeft.scheduling.problem import Problem, take_top


@dataclass(frozen=True, kw_only=True)
class NSGA2Settings(PopulationSettings):
    """Settings of `nsga2`; its iterations are generations.

    Args:
        mutation: probability that a child redraws the layers of one client; from 0 to 1.

    Source: F3OCUS supplement, implementation details.
    """

    mutation: float = field(default=0.5, metadata=within(0, 1))


def search(problem: Problem, rng: np.random.Generator, settings: NSGA2Settings) -> Front:
    """Search by crossover and mutation; assignments that dominate, or are far from others, survive.

    Source: Deb et al., A fast and elitist multiobjective genetic algorithm (2002); F3OCUS, Algorithms 2-11.
    """
    archive = Archive(problem)
    algorithm = NSGA2(
        pop_size=settings.population,
        sampling=_FirstPopulation(problem, settings),
        crossover=_UnionCrossover(problem),
        mutation=_RedrawClient(problem, settings.mutation),
        eliminate_duplicates=False,  # else the number of evaluations varies
    )
    # pymoo counts the first population as a generation
    stop = ("n_gen", settings.iterations + 1)
    minimize(_Assignments(archive), algorithm, stop, seed=int(rng.integers(2**31)), copy_algorithm=False)
    return archive.front()


class _Assignments(Objectives):
    """The objectives that pymoo minimizes: -importance and variance; an assignment is a row of N * L booleans."""

    def __init__(self, archive: Archive) -> None:
        super().__init__(n_var=archive.problem.scores.size, n_obj=2, xl=0, xu=1, vtype=bool)
        self.archive = archive

    def _evaluate(self, x: np.ndarray, out: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        importance, variance = self.archive.evaluate(_masks(self.archive.problem, x))
        out["F"] = np.column_stack([-importance, variance])


class _FirstPopulation(Sampling):
    def __init__(self, problem: Problem, settings: NSGA2Settings) -> None:
        super().__init__()
        self.problem, self.settings = problem, settings

    def _do(self, problem: Objectives, n_samples: int, *args: Any, random_state: np.random.Generator, **kwargs: Any):
        return first_population(self.problem, self.settings, random_state).reshape(n_samples, -1)


class _UnionCrossover(Crossover):
    """For every client a child keeps the layers that both parents train, and draws the rest from those of either.

    Algorithm 10 draws all of them from the union, so that two equal parents have different children.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(n_parents=2, n_offsprings=2, prob=1.0)
        self.problem = problem

    def _do(self, problem: Objectives, x: np.ndarray, *args: Any, random_state: np.random.Generator, **kwargs: Any):
        first, second = (_masks(self.problem, parents) for parents in x)  # (M, N, L) each
        lots = random_state.random((2, *first.shape))
        keys = np.where(first & second, 2.0, np.where(first | second, lots, -1.0))
        return take_top(keys, self.problem.budgets).reshape(x.shape)


class _RedrawClient(Mutation):
    """Some children redraw the layers of one client (Algorithm 11)."""

    def __init__(self, problem: Problem, probability: float) -> None:
        super().__init__(prob=probability)
        self.problem = problem

    def _do(self, problem: Objectives, x: np.ndarray, *args: Any, random_state: np.random.Generator, **kwargs: Any):
        return redraw_client(self.problem, _masks(self.problem, x), random_state).reshape(x.shape)


def _masks(problem: Problem, x: np.ndarray) -> np.ndarray:
    return x.astype(bool, copy=False).reshape(-1, *problem.scores.shape)

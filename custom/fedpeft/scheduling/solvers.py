# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Solvers by name, and `schedule`, which runs one; layers drawn at random, the same for all clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import Registry
from fedpeft.core.settings import build, hints_of
from fedpeft.scheduling.front import Archive, Front
from fedpeft.scheduling.problem import Problem, build_problem, take_top

Search = Callable[..., Front]  # (problem, rng, settings); the annotation of settings names their dataclass
SOLVERS: Registry[Search] = Registry("solver", "fedpeft.solvers", Callable)
names = SOLVERS.names


def register(name: str, home: str | Search) -> None:
    """Register a solver as `Registry.register` does; one of a notebook must annotate its settings."""
    if not isinstance(home, str) and callable(home) and "settings" not in _hints(home):
        raise FedpeftError(
            f"solver {name!r} does not say what its settings are: annotate settings with their dataclass."
        )
    SOLVERS.register(name, home)


def solver_settings(solver: str, **settings: Any) -> Any:
    """Return the checked settings of a solver, with the paper's values as defaults."""
    return build(_settings_class(solver), settings, section=solver)


def weighs_scores(solver: str) -> bool:
    """Return whether a solver looks at scores; without them it finds a single assignment and no front."""
    return getattr(_settings_class(solver), "scored", True)


def names_with_front() -> tuple[str, ...]:
    """Return the solvers that find a front of importance against variance."""
    return tuple(name for name, _ in SOLVERS.usable() if weighs_scores(name))


def schedule(
    scores: np.ndarray,
    budgets: np.ndarray | int,
    solver: str = "nsga2",
    seed: int = 0,
    *,
    clients: Sequence[str] | None = None,
    **settings: Any,
) -> Front:
    """Compute a front of assignments of layers to clients that trade importance against an even use of the layers.

    Args:
        scores: (N, L) importance of layer l at client i; `fedpeft.importance` gives rows that sum to 1.
        budgets: (N,) layers that each client trains, from 0 to L, or one number for all; every budget is used up.
        solver: one of `names()`.
        seed: source of all randomness; the same seed gives the same front.
        clients: (N,) names for errors.
        settings: of the solver, for instance `population=100`; see its settings dataclass.

    Raises:
        FedpeftError: wrong shapes, a score that is not finite, a budget out of range, unknown solver or setting.

    Source: Saha et al., F3OCUS (CVPR 2025), Server-level Layer Selection.

    See Also: `choose`, which takes one assignment; `exact_front`, which proves its front.

    Example:
        >>> front = schedule([[0.75, 0.25], [0.5, 0.5]], 1, solver="nsga2", seed=0)
        >>> front.importance.tolist(), front.variance.tolist()
        ([1.25], [0.0])
    """
    own_settings = solver_settings(solver, **settings)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise FedpeftError(f"seed is {seed!r}, it must be a whole number of at least 0.")
    problem = build_problem(scores, budgets, clients=clients)
    front = SOLVERS.get(solver)(problem, np.random.default_rng(seed), own_settings)
    _check_front(front, problem, solver)
    return front


def _check_front(front: Any, problem: Problem, solver: str) -> None:
    """Refuse what is not a front of this problem, since a site could get more layers than its memory holds."""
    if not isinstance(front, Front):
        raise FedpeftError(
            f"solver {solver!r} returned a {type(front).__name__}: have it return Archive(problem).front()."
        )
    masks = np.asarray(front.masks)
    if masks.dtype != bool or masks.ndim != 3 or not len(masks) or masks.shape[1:] != problem.scores.shape:
        raise FedpeftError(
            f"solver {solver!r} returned masks of {masks.dtype} and shape {masks.shape}, they must be bool and of "
            f"shape (F, {', '.join(map(str, problem.scores.shape))}), with F at least 1."
        )
    chosen = masks.sum(axis=2)
    wrong = np.argwhere(chosen != problem.budgets)
    if len(wrong):
        point, client = wrong[0].tolist()
        raise FedpeftError(
            f"solver {solver!r} gives client {client} {chosen[point, client]} layers in assignment {point}, and its "
            f"budget is {problem.budgets[client]}: have it use up every budget exactly."
        )


def _hints(search: Search) -> Mapping[str, Any]:
    try:
        return hints_of(search)
    except TypeError:  # an object that can be called, such as a partial, declares nothing
        return {}


def _settings_class(solver: str) -> type:
    cls = _hints(SOLVERS.get(solver)).get("settings")
    if cls is None:
        raise FedpeftError(
            f"solver {solver!r} does not say what its settings are: annotate settings with their dataclass."
        )
    return cls


register("nsga2", "fedpeft.scheduling.nsga2:search")
register("mopso", "fedpeft.scheduling.heuristics:mopso")
register("annealing", "fedpeft.scheduling.heuristics:annealing")
register("ant_colony", "fedpeft.scheduling.heuristics:ant_colony")
register("bee_colony", "fedpeft.scheduling.heuristics:bee_colony")
register("exact", "fedpeft.scheduling.exact:search")
register("drawn", "fedpeft.scheduling.solvers:search")


@dataclass(frozen=True, kw_only=True)
class DrawnSettings:
    """Settings of `drawn`, which has none: the budget says how many layers are drawn."""

    scored: ClassVar[bool] = False  # no client computes scores for it


def search(problem: Problem, rng: np.random.Generator, settings: DrawnSettings) -> Front:
    """Draw one order of the layers; every client trains its first layers, as many as its budget.

    Source: the federated parameter-efficient tuning of vision transformers, stochastic block attention (SBA).
    """
    archive = Archive(problem)
    lots = np.broadcast_to(rng.random(problem.scores.shape[1]), problem.scores.shape)
    archive.evaluate(take_top(lots, problem.budgets)[None])
    return archive.front()

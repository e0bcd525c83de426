# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which layers each client trains: importance against an even use of the layers (F3OCUS, the server's half).

    problem           checked scores and budgets, and the assignments that every solver can start from
    front             the Pareto front: its assignments, its hypervolume, and how to choose from it
    solvers           the solvers by name, and `schedule`; layers drawn at random, the same for all clients
    nsga2             NSGA-II by pymoo, the paper's first heuristic
    heuristics        what the heuristics share; annealing, ant colonies, bee colonies and particles
    exact             the exact front, by shortest paths or HiGHS

Arrays and a seed in, arrays out: no model, no file, no FLARE, no torch. One round of the server:

    front = schedule(scores, budgets, solver="nsga2", seed=0)       # scores (N, L), budgets (N,)
    mask = choose(front, weight_importance=1.0, weight_diversity=1.0)      # (N, L) bool
"""

from fedpeft.core.registry import lazy_module

# scipy and pymoo cost most of a second: a name is imported when it is first used
_HOME = {
    "schedule": "solvers",
    "names": "solvers",
    "names_with_front": "solvers",
    "weighs_scores": "solvers",
    "solver_settings": "solvers",
    "register": "solvers",
    "Front": "front",
    "choose": "front",
    "hypervolume": "front",
    "nadir": "front",
    "exact_front": "exact",
}

__all__ = list(_HOME)
__getattr__, __dir__ = lazy_module(__name__, _HOME)

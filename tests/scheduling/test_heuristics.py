# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What every solver keeps to, and how near the heuristics come to the exact front."""

import numpy as np
import pytest
from grids import each
from instances import HEURISTICS, ODD, SOLVERS, realistic

from fedpeft.core.errors import FedpeftError
from fedpeft.scheduling import exact_front, hypervolume, nadir, schedule
from fedpeft.scheduling.front import Archive
from fedpeft.scheduling.heuristics import path, redraw_client, swap_layer
from fedpeft.scheduling.nsga2 import NSGA2Settings
from fedpeft.scheduling.problem import balanced, build_problem, greedy

FEW = {"population": 6, "iterations": 3}
STARTS = ("path", "ends", "random")


def few(solver):
    """Settings for a short run."""
    if solver == "exact":
        return {}
    return FEW | ({"colonies": 3} if solver == "ant_colony" else {})


def assert_valid(front, scores, budgets):
    assert len(front) >= 1
    assert front.masks.dtype == bool
    assert front.masks.shape == (len(front), *np.shape(scores))
    assert (front.masks.sum(axis=2) == np.asarray(budgets)).all()
    assert front.importance == pytest.approx([np.asarray(scores)[mask].sum() for mask in front.masks])
    assert front.variance == pytest.approx(front.masks.sum(axis=1).var(axis=1))
    # both rise: nothing dominates anything
    assert (np.diff(front.importance) > 0).all()
    assert (np.diff(front.variance) > 0).all()


@each("solver", SOLVERS)
@each("name", ODD)
def test_odd_instances_keep_budgets_and_have_no_dominated_points(solver, name):
    scores, budgets = ODD[name]
    assert_valid(schedule(scores, budgets, solver=solver, **few(solver)), scores, budgets)


@each("solver", HEURISTICS)
@each("start", STARTS)
@each("seed", range(3))
def test_unequal_budgets_are_met_from_every_start(solver, start, seed):
    scores, _ = realistic(7, 9, seed)
    budgets = np.random.default_rng(seed).integers(0, 10, 7)
    assert_valid(schedule(scores, budgets, solver=solver, seed=seed, start=start, **few(solver)), scores, budgets)


@each("solver", HEURISTICS)
@each("start", STARTS)
def test_same_seed_same_front_and_another_seed_another(solver, start):
    scores, budgets = realistic(8, 10, seed=0)
    first, again, other = (
        schedule(scores, budgets, solver=solver, seed=seed, start=start, **few(solver)) for seed in (5, 5, 6)
    )
    for field in ("masks", "importance", "variance"):
        assert getattr(first, field).tobytes() == getattr(again, field).tobytes()
    assert first.masks.tobytes() != other.masks.tobytes()


@pytest.mark.parametrize("solver", HEURISTICS)
@pytest.mark.parametrize("population", [6, 7])
def test_all_count_the_same_number_of_evaluations(solver, population):
    scores, budgets = realistic(5, 6, seed=1, budget=2)
    front = schedule(scores, budgets, solver=solver, **few(solver) | {"population": population})
    assert front.evaluations == population * (3 + 1)


@pytest.mark.slow
@pytest.mark.parametrize("solver", HEURISTICS)
def test_heuristics_find_97_percent_of_the_exact_hypervolume(solver):
    shares = []
    for seed in range(5):
        scores, budgets = realistic(10, 12, seed)
        exact = exact_front(scores, budgets)
        front = schedule(scores, budgets, solver=solver, seed=seed)
        shares.append(hypervolume(front, nadir(exact)) / hypervolume(exact, nadir(exact)))
    assert np.median(shares) >= 0.97
    assert min(shares) >= 0.94


@pytest.mark.parametrize("solver", HEURISTICS)
@pytest.mark.parametrize("start", ["path", "ends"])
def test_informed_starts_keep_both_ends(solver, start):
    scores, budgets = realistic(6, 8, seed=3, budget=3)
    front = schedule(scores, budgets, solver=solver, start=start, **few(solver))
    problem = build_problem(scores, budgets)
    assert front.importance[-1] == pytest.approx(scores[greedy(problem)].sum())
    assert front.variance[0] == pytest.approx(balanced(problem).sum(axis=0).var())


@pytest.mark.parametrize("solver", HEURISTICS)
def test_searching_longer_finds_more(solver):
    scores, budgets = realistic(10, 12, seed=0)
    reference = nadir(exact_front(scores, budgets))
    short, long = (
        hypervolume(schedule(scores, budgets, solver=solver, start="ends", iterations=n), reference) for n in (1, 20)
    )
    assert long > short


@pytest.mark.parametrize("temperature", [50.0, 100.0])
def test_annealing_accepts_what_is_worse_with_exp_of_gain_over_temperature(temperature, monkeypatch):
    evaluated = []
    evaluate = Archive.evaluate
    monkeypatch.setattr(Archive, "evaluate", lambda self, masks: evaluated.append(masks) or evaluate(self, masks))
    # one client, one of two layers: the only neighbor of the better layer is the worse one, at equal variance
    settings = {"population": 4000, "iterations": 2, "initial_temperature": temperature}
    schedule([[0.01, 0.0]], [1], solver="annealing", **settings)
    start, _, second = evaluated
    assert start[:, 0, 0].all()
    accepted = second[:, 0, 0].mean()  # only a chain that went to the worse layer has the better one as its neighbor
    gain = -2 * np.linspace(1, 0, 4000) * 0.01
    assert accepted == pytest.approx(np.exp(gain / (1e-4 * temperature)).mean(), abs=0.03)


def test_path_runs_from_greedy_to_balanced():
    problem = build_problem(*realistic(10, 12, seed=0))
    masks = path(problem, 20, np.random.default_rng(0))
    counts = masks.sum(axis=1)
    assert (masks[0] == greedy(problem)).all()
    assert counts[-1].max() - counts[-1].min() <= 1
    assert len(np.unique(masks, axis=0)) > 10


def test_swap_changes_one_layer_of_one_client_that_can():
    problem = build_problem(np.ones((4, 6)), [0, 6, 2, 3])
    masks = np.repeat(greedy(problem)[None], 200, axis=0)
    changed = swap_layer(problem, masks, np.random.default_rng(0)) ^ masks
    assert (changed.sum(axis=(1, 2)) == 2).all()
    assert set(np.flatnonzero(changed.any(axis=(0, 2)))) == {2, 3}
    assert (changed.any(axis=2).sum(axis=1) == 1).all()


def test_redraw_changes_one_client_and_reaches_every_layer():
    problem = build_problem(np.ones((4, 6)), [1, 6, 2, 3])
    masks = np.repeat(greedy(problem)[None], 300, axis=0)
    moved = redraw_client(problem, masks, np.random.default_rng(0))
    assert (moved.sum(axis=2) == problem.budgets).all()
    assert ((moved ^ masks).any(axis=2).sum(axis=1) <= 1).all()
    assert moved[:, [0, 2, 3]].any(axis=0).all()


def test_crossover_keeps_what_both_parents_train_and_adds_only_what_one_does():
    from fedpeft.scheduling.nsga2 import _UnionCrossover

    problem = build_problem(np.ones((5, 8)), [1, 2, 3, 4, 8])
    rng = np.random.default_rng(0)
    first, second = (redraw_client(problem, np.repeat(greedy(problem)[None], 40, axis=0), rng) for _ in range(2))
    parents = np.stack([first, second]).reshape(2, 40, -1)
    children = _UnionCrossover(problem)._do(None, parents, random_state=rng).reshape(2, 40, 5, 8)
    assert (children.sum(axis=3) == problem.budgets).all()
    assert (children <= (first | second)).all()
    assert (children >= (first & second)).all()


@pytest.mark.parametrize(
    ("solver", "settings", "message"),
    [
        ("nsga2", {"population": 1}, "population is 1, it must be at least 2"),
        ("nsga2", {"iterations": 0}, "iterations is 0"),
        ("nsga2", {"mutation": 1.5}, "mutation is 1.5, it must be at most 1"),
        ("mopso", {"inertia": -0.1}, "inertia is -0.1"),
        ("mopso", {"social": float("nan")}, "social is nan"),
        ("annealing", {"initial_temperature": 0.0}, "initial_temperature is 0"),
        ("annealing", {"cooling": 2.0}, "cooling is 2.0"),
        ("ant_colony", {"evaporation": 1.0}, "evaporation is 1"),
        ("ant_colony", {"initial_pheromone": 0.0}, "initial_pheromone is 0"),
        ("ant_colony", {"beta": 1e308}, "beta is 1e.308, it must be at most 1,000"),
        ("mopso", {"social": 1e308}, "social is 1e.308, it must be at most 1,000"),
        ("ant_colony", {"colonies": 51}, "colonies is 51, it must be at most the population, 50"),
        ("bee_colony", {"limit": 0}, "limit is 0"),
        ("bee_colony", {"start": "greedy"}, "start is 'greedy', allowed are random, ends, path"),
        ("mopso", {"mutation": 0.5}, "mopso.mutation is not a setting"),
        ("exact", {"population": 50}, "exact.population is not a setting"),
    ],
)
def test_bad_settings_are_refused(solver, settings, message):
    scores, budgets = realistic(3, 4, seed=0, budget=2)
    with pytest.raises(FedpeftError, match=message):
        schedule(scores, budgets, solver=solver, **settings)


@pytest.mark.filterwarnings("error")
def test_pheromone_that_evaporates_leaves_the_draw_to_the_scores():
    scores, budgets = realistic(3, 6, seed=0, budget=2)
    alone = {"alpha": 0.0, "deposit": 0.0, "population": 10, "iterations": 200, "start": "random", "seed": 0}
    kept, gone = (schedule(scores, budgets, solver="ant_colony", evaporation=e, **alone) for e in (0.0, 0.999))
    assert (kept.masks == gone.masks).all()


@pytest.mark.filterwarnings("error")
def test_chains_that_cooled_down_accept_only_what_is_better():
    scores, budgets = realistic(3, 6, seed=0, budget=2)
    cold = {"initial_temperature": 1e-300, "final_temperature": 0.0, "cooling": 1e-9, "start": "random", "seed": 0}
    strict = {"initial_temperature": 1.0, "final_temperature": 1.0, "start": "random", "seed": 0}
    frozen, never = (schedule(scores, budgets, solver="annealing", **one) for one in (cold, strict))
    assert (frozen.masks == never.masks).all()


def test_settings_that_a_program_builds_are_checked_for_whole_numbers():
    with pytest.raises(FedpeftError, match=r"population is 2\.5, it must be a whole number"):
        NSGA2Settings(population=2.5)

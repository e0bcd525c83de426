# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""schedule: what it refuses, and that it needs neither torch nor FLARE; layers drawn for all clients alike."""

import subprocess
import sys

import numpy as np
import pytest
from instances import SOLVERS

from fedpeft import scheduling
from fedpeft.core.errors import FedpeftError
from fedpeft.scheduling import names, names_with_front, schedule
from fedpeft.scheduling.front import Front
from fedpeft.scheduling.solvers import SOLVERS as REGISTRY
from fedpeft.scheduling.solvers import DrawnSettings

SCORES = np.full((3, 4), 0.25)
NAN, INFINITE = SCORES.copy(), SCORES.copy()
NAN[1, 2] = np.nan
INFINITE[2, 0] = np.inf


def test_every_solver_of_the_list_is_there():
    assert names_with_front() == SOLVERS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": NAN}, "client 1 scores layer 2 with nan"),
        ({"scores": NAN, "clients": ["slake", "vqa_rad", "vqa_med"]}, "client 'vqa_rad' scores layer 2 with nan"),
        ({"scores": INFINITE}, "client 2 scores layer 0 with inf"),
        ({"budgets": [1, -1, 1]}, "client 1 has a budget of -1 layers, it must be a whole number from 0 to 4"),
        ({"budgets": [1, 1, 5], "clients": ["a", "b", "c"]}, "client 'c' has a budget of 5 layers"),
        ({"budgets": [1, 1.5, 1]}, "client 1 has a budget of 1.5 layers"),
        ({"budgets": [1, np.nan, 1]}, "client 1 has a budget of nan layers"),
        ({"budgets": [1, 1]}, r"budgets have the shape \(2,\)"),
        ({"budgets": [[1, 1, 1]]}, r"budgets have the shape \(1, 3\)"),
        ({"budgets": 5}, "client 0 has a budget of 5 layers"),
        ({"budgets": 1.5}, "client 0 has a budget of 1.5 layers"),
        ({"scores": SCORES[0]}, r"scores have the shape \(4,\)"),
        ({"scores": np.empty((0, 4)), "budgets": []}, r"scores have the shape \(0, 4\)"),
        ({"scores": [[1, 2], [3]]}, "scores are .*must be an array of numbers"),
        ({"scores": "high"}, "scores are 'high', they must be an array of numbers"),
        ({"clients": ["a"]}, "clients has 1 names for the 3 rows"),
        ({"solver": "nsga3"}, "solver 'nsga3' is unknown: did you mean 'nsga2'"),
        ({"scores": np.full((3, 4), 1e308)}, r"largest score is 1e\+308, .* overflow: divide all scores by it"),
        ({"scores": np.full((3, 4), -1e308), "solver": "exact"}, "overflow"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"popluation": 10}, "nsga2.popluation is not a setting: did you mean 'population'"),
        ({"population": None}, "nsga2.population is None"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments, message):
    with pytest.raises(FedpeftError, match=message) as error:
        schedule(**{"scores": SCORES, "budgets": [1, 1, 1]} | arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("solver", SOLVERS)
def test_one_budget_serves_all_clients(solver):
    scores = np.random.default_rng(0).random((5, 6))
    one, each = schedule(scores, 2, solver=solver), schedule(scores, [2] * 5, solver=solver)
    assert one.masks.tobytes() == each.masks.tobytes()


@pytest.mark.parametrize("solver", SOLVERS)
def test_input_stays_as_it_is(solver):
    scores, budgets = np.random.default_rng(0).random((4, 6)), np.array([2, 3, 0, 6])
    before = scores.tobytes(), budgets.tobytes()
    schedule(scores, budgets, solver=solver)
    assert (scores.tobytes(), budgets.tobytes()) == before


def made_up(masks):
    def search(problem, rng, settings: DrawnSettings):
        return (
            Front(masks=masks, importance=np.zeros(1), variance=np.zeros(1), evaluations=1) if masks is not None else 3
        )

    return search


FEW, MANY = np.zeros((1, 3, 4), dtype=bool), np.ones((1, 3, 4), dtype=bool)


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (FEW, "solver 'mine' gives client 0 0 layers in assignment 0, and its budget is 1"),
        (MANY, "solver 'mine' gives client 0 4 layers in assignment 0, and its budget is 1"),
        (MANY[0], r"masks of bool and shape \(3, 4\), they must be bool and of shape \(F, 3, 4\)"),
        (MANY[:, :2], r"of shape \(F, 3, 4\)"),
        (MANY[:0], "with F at least 1"),
        (np.eye(3, 4)[None], "masks of float64"),
        (None, "solver 'mine' returned a int"),
    ],
)
def test_what_a_solver_of_ones_own_returns_is_checked(masks, message, monkeypatch):
    monkeypatch.setattr(REGISTRY, "_own", dict(REGISTRY._own))
    scheduling.register("mine", made_up(masks))
    with pytest.raises(FedpeftError, match=message):
        schedule(SCORES, 1, solver="mine")


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (lambda problem, rng, settings: None, "annotate settings with their dataclass"),
        (3, "is of type int, not Callable"),
    ],
)
def test_a_solver_that_cannot_be_used_is_refused_at_once(solver, message, monkeypatch):
    monkeypatch.setattr(REGISTRY, "_own", dict(REGISTRY._own))
    with pytest.raises(FedpeftError, match=f"solver 'mine' .*{message}"):
        scheduling.register("mine", solver)
    assert names_with_front() == SOLVERS


def test_every_public_name_can_be_imported():
    assert all(getattr(scheduling, name) is not None for name in scheduling.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = scheduling.nothing


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["nsga2", "exact"])
def test_scheduling_imports_neither_torch_nor_flare(solver):
    code = (
        "import sys; from fedpeft.scheduling import schedule; "
        "assert 'scipy' not in sys.modules and 'pymoo' not in sys.modules; "
        f"schedule([[.1, .9], [.3, .7]], [1, 1], solver={solver!r}); "
        "print([name for name in ('torch', 'nvflare', 'transformers', 'peft') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def drawn(budgets, seed, layers=6):
    scores = np.random.default_rng(seed + 1000).random((len(budgets), layers))
    (mask,) = schedule(scores, np.array(budgets), solver="drawn", seed=seed).masks
    return [np.flatnonzero(row).tolist() for row in mask]


def test_all_clients_get_the_same_layer_and_every_layer_gets_its_turn():
    blocks = []
    for seed in range(300):
        (first, *others) = drawn([1, 1, 1], seed)
        assert others == [first, first]
        blocks += first
    assert np.bincount(blocks, minlength=6).min() > 300 / 6 / 2


def test_a_smaller_budget_gets_a_part_of_what_the_largest_gets():
    for seed in range(20):
        none, two, four = drawn([0, 2, 4], seed)
        assert none == []
        assert set(two) < set(four)


def test_scores_do_not_matter_and_it_has_no_front():
    for seed in range(5):
        zero = schedule(np.zeros((2, 6)), 1, solver="drawn", seed=seed)
        assert np.array_equal(zero.masks, schedule(np.eye(6)[:2], 1, solver="drawn", seed=seed).masks)
        assert len(zero) == 1
    assert set(names()) - set(names_with_front()) == {"drawn"}

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The plan of a round: the same for FLARE's controller and for a federation within one process."""

import pytest

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build
from fedpeft.job.federation import FederationSettings, check_joins
from fedpeft.methods.settings import MethodSettings
from fedpeft.scheduling import names_with_front
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.server.planner import RoundPlanner, best_before_end

BUDGETS = {"north": 1, "south": 2, "west": 1}
SCORES = {"north": [0.1, 0.2, 0.7], "south": [0.6, 0.3, 0.1], "west": [0.1, 0.8, 0.1]}


def planner(**schedule):
    return RoundPlanner(ScheduleSettings(**schedule), budgets=BUDGETS, layers=[4, 5, 6], seed=0)


def test_without_a_schedule_all_sites_train_all_layers():
    plan = planner()
    assert plan.participants(1) == list(BUDGETS)
    assert plan.due(1, list(BUDGETS)) == []
    assert plan.assignment(1, list(BUDGETS)) is None


def test_each_site_may_train_its_own_best_layers():
    plan = planner(solver="own")
    plan.scores |= SCORES
    assert plan.assignment(1, list(BUDGETS)).layers == {"north": [6], "south": [4, 5], "west": [5]}


@pytest.mark.parametrize(
    ("schedule", "due"),
    [
        ({"solver": "own"}, [3, 3, 3, 3]),
        ({"solver": "own", "every": 2}, [3, 0, 3, 0]),
        ({"solver": "own", "scoring": "with_reply"}, [3, 0, 0, 0]),
    ],
)
def test_sites_score_in_the_rounds_of_the_schedule(schedule, due):
    plan = planner(**schedule)
    counts = []
    for round in range(1, 5):
        sites = plan.due(round, plan.participants(round))
        plan.scores |= {site: SCORES[site] for site in sites}
        counts.append(len(sites))
    assert counts == due


def test_a_site_that_comes_later_scores_first():
    plan = planner(solver="own", every=10)
    plan.scores |= {"north": SCORES["north"]}
    assert plan.due(3, ["north", "south"]) == ["south"]


@pytest.mark.parametrize("solver", names_with_front())
@pytest.mark.parametrize("scale", [1e30, 100.0, 1e-20])
def test_no_site_outweighs_the_others_with_the_size_of_its_scores(solver, scale):
    plain, scaled = planner(solver=solver), planner(solver=solver)
    plain.scores |= SCORES
    scaled.scores |= SCORES | {"south": [scale * score for score in SCORES["south"]]}
    expected, got = (plan.assignment(1, list(BUDGETS)) for plan in (plain, scaled))
    assert got.layers == expected.layers
    assert got.importance == pytest.approx(expected.importance)


def test_a_job_sets_its_solver():
    plan = planner(solver="nsga2", solver_settings={"population": 8, "iterations": 2})
    plan.scores |= SCORES
    assert {site: len(layers) for site, layers in plan.assignment(1, list(BUDGETS)).layers.items()} == BUDGETS


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ({"solver": "nsga2", "solver_settings": {"popluation": 8}}, "did you mean 'population'"),
        ({"solver": "nsga2", "solver_settings": {"population": 10**9}}, "at most 10,000"),
        ({"solver": "nsga2", "solver_settings": {"population": 1000, "iterations": 1000}}, "above 200,000"),
        ({"solver": "exact", "solver_settings": {"full": True}}, "may keep the server busy without end"),
        ({"solver": "own", "solver_settings": {"population": 8}}, "solver='own' has no setting 'population'"),
    ],
)
def test_a_solvers_settings_are_checked_with_the_job(schedule, sentence):
    with pytest.raises(FedpeftError, match=sentence):
        build(ScheduleSettings, schedule, section="schedule")


def test_a_site_joins_in_its_round_and_begins_with_its_own_adapter():
    plan = planner(joins={"south": 3})
    assert [plan.participants(round) for round in (2, 3)] == [["north", "west"], ["north", "south", "west"]]
    assert [plan.begins(round, "south") for round in (2, 3, 4)] == [False, True, False]
    assert not plan.begins(1, "north")


def test_of_the_sites_that_have_joined_some_are_drawn():
    plan = planner(joins={"south": 3}, clients_per_round=2)
    assert plan.participants(1) == ["north", "west"]
    assert "south" in {site for round in range(3, 9) for site in plan.participants(round)}


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ({"joins": {"south": 0}}, "joins.south is 0"),
        ({"joins": {"south": 2}, "solver": "own"}, "set solver to 'all' or leave joins out"),
    ],
)
def test_when_sites_join_is_checked_with_the_job(schedule, sentence):
    with pytest.raises(FedpeftError, match=sentence):
        build(ScheduleSettings, schedule, section="schedule")


@pytest.mark.parametrize(
    ("joins", "sentence"),
    [({"south": 5}, "lets south join in round 5, the job has 4"), (dict.fromkeys(BUDGETS, 2), "every site join after")],
)
def test_a_job_that_its_sites_cannot_join_is_refused(joins, sentence):
    with pytest.raises(FedpeftError, match=sentence):
        check_joins(joins, FederationSettings(sites=tuple(BUDGETS)), rounds=4)


def test_stacked_factors_need_every_site_from_the_first_round():
    method = build(MethodSettings, {"name": "lora", "aggregation": "stack"}, section="method")
    with pytest.raises(FedpeftError, match="names south"):
        method.check_schedule(active=False, joins=["south"])


def test_a_site_takes_part_in_the_round_in_which_it_joins_however_few_are_drawn():
    for number in (1, 2):
        plan = planner(joins={"west": 3}, clients_per_round=number)
        for round in range(1, 6):
            sites = plan.participants(round)
            assert len(sites) == number
            assert "west" in sites if round == 3 else ("west" not in sites or round > 3)


def test_where_other_sites_were_drawn_since_nothing_says_that_a_job_stands_still():
    """The median of ever more sites falls, though each of them improves whenever it takes part."""
    rounds = [{site: {"validation": figure}} for site, figure in (("a", 0.9), ("b", 0.5), ("c", 0.4), ("d", 0.3))]
    assert best_before_end(rounds, 3) is None
    again = [*rounds, {"a": {"validation": 0.8}}, {"b": {"validation": 0.4}}, {"c": {"validation": 0.3}}]
    assert best_before_end(again, 3) == 1

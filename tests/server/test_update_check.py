# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Whose update is refused when the replies of a round disagree, and what nobody can reach over the rounds."""

import json
import math

import pytest
import torch
from grids import each
from torch import nn

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.methods.settings import MethodSettings
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.server import checkpoint
from fedpeft.server.update_check import UpdateCheck, update_length
from fedpeft.site.loop import NORMALIZES, build_optimizer, sum_of_rate_factors

KEY = "layer.0.output.down.weight"
RATE, STEPS, SAMPLES = 0.01, 4, 64  # with batches of 16
LEARNED = RATE * STEPS  # further than this on average AdamW does not go
HONEST = 0.4 * LEARNED
START = {KEY: torch.full((4, 5), 0.05)}
JOBS = {
    "fedavg": ({"aggregation": "fedavg"}, {}),
    "fedavg with sgd": ({"aggregation": "fedavg"}, {"optimizer": "sgd"}),
    "fedpia": ({"aggregation": "pia", "pia": {"share": 0.5, "integration": "weight_space"}}, {}),
    "svd": ({"name": "lora", "aggregation": "svd"}, {}),
    "svd of other ranks": ({"name": "lora", "aggregation": "svd", "site_settings": {"a": {"r": 4}}}, {}),
}


def check_of(method, training=None, **past):
    settings = {"rounds": 10, "learning_rate": RATE, "warmup": 0, "decay": "none", **(training or {})}
    return UpdateCheck(MethodSettings(**method), TrainingSettings(**settings), **past)


def refused_of(check, moves, *, start=START, samples=(), round=2):
    """The numbers of the sites that are refused."""
    states = {f"{k}": {key: tensor + move for key, tensor in START.items()} for k, move in enumerate(moves)}
    counts = dict(zip(states, samples or [SAMPLES] * len(moves), strict=True))
    return [int(site) for site in check.outlying(states, start, counts, round)]


@pytest.mark.slow
@each("job", JOBS)
@each("low", [0.0, 1e-6, 1e-3])
@each(("liars", "honest"), [(1, 1), (2, 1), (3, 1), (2, 2), (1, 2), (2, 3), (1, 4)])
def test_sites_that_hardly_move_have_no_honest_one_refused(job, low, liars, honest):
    """One of two, two of three, two of four: they were the median."""
    method, training = JOBS[job]
    step = (
        HONEST if training.get("optimizer") != "sgd" else 0.08
    )  # of a job without a bound: as far as the adapter is long
    check = check_of(method, training)
    for _ in range(10):
        assert refused_of(check, [low] * liars + [step] * honest) == []


@each("job", JOBS)
@each("factor", [1e3, 1e6])
@each("moves", [[HONEST], [1e-6], [HONEST] * 2, [HONEST, 1e-6], [HONEST] * 3, [HONEST] * 4])
@each("announced", [SAMPLES, 20 * SAMPLES])
def test_an_update_beyond_anything_that_training_explains_is_refused(job, factor, moves, announced):
    """Whatever number of samples its site announces, and also where only two replies stand against each other."""
    method, training = JOBS[job]
    samples = [*[SAMPLES] * len(moves), announced]
    assert refused_of(check_of(method, training), [*moves, factor * HONEST], samples=samples) == [len(moves)]


@pytest.mark.parametrize("rows", [2, 8])
@pytest.mark.parametrize(("factor", "refused"), [(1, []), (100, ["4"])])
def test_a_site_of_another_rank_may_send_what_is_as_large_as_the_global_adapter(rows, factor, refused):
    """The whole of it counts as its update: how far it moved nobody can tell."""
    check, start = check_of(*JOBS["svd of other ranks"]), {KEY: torch.ones(4, 5)}
    states = {str(number): {KEY: start[KEY] + HONEST} for number in range(4)}
    states["4"] = {KEY: factor * (torch.ones(rows, 5) + HONEST)}
    counts = dict.fromkeys(states, SAMPLES)
    assert [list(check.outlying(states, start, counts, round)) for round in range(2, 8)] == [refused] * 6


@pytest.mark.parametrize("size", [1e3, 1e6])
def test_of_two_sites_whose_start_is_unknown_the_one_with_a_huge_adapter_is_refused(size):
    """In a first round the server may not know where they start. Where they disagree otherwise, nobody is refused."""
    check = check_of({"aggregation": "fedavg"})
    assert refused_of(check, [HONEST, size * HONEST], start={}, round=1) == [1]
    assert refused_of(check, [HONEST, -0.05], start={}, round=1) == []


@pytest.mark.parametrize("sites", [3, 5])
def test_who_announces_many_samples_has_no_higher_limit_than_ten_times_the_others(sites):
    check = check_of({"aggregation": "fedavg"})
    moves, samples = [HONEST] * (sites - 1) + [40 * LEARNED], [SAMPLES] * (sites - 1) + [10**6]
    assert refused_of(check, moves, samples=samples) == [sites - 1]


@pytest.mark.parametrize("announced", [SAMPLES, 10 * SAMPLES, 10**6])
@pytest.mark.parametrize("sites", [3, 5])
def test_whatever_a_site_announces_it_moves_no_further_than_ten_sites_learn(sites, announced):
    check = check_of({"aggregation": "fedavg"})
    samples = [SAMPLES] * (sites - 1) + [announced]
    assert refused_of(check, [HONEST] * (sites - 1) + [10.1 * LEARNED], samples=samples) == [sites - 1]


@pytest.mark.parametrize("sites", [3, 4, 5])
@pytest.mark.parametrize("job", ["fedavg", "svd"])
def test_who_moves_almost_up_to_the_limit_in_every_round_gets_a_third_of_it(job, sites):
    """The mean over the rounds falls from 9.5 to the root of 10, or to what the steps' learning rates add up to."""
    check, rounds = check_of(JOBS[job][0]), 40
    accepted = sum(not refused_of(check, [HONEST] * (sites - 1) + [9.5 * HONEST]) for _ in range(rounds))
    assert 9.5 * accepted / rounds < math.sqrt(10) + 10 / rounds
    assert accepted >= 2  # a single round of that length is no reason


def test_a_site_with_ten_times_the_samples_may_move_ten_times_as_far_in_every_round():
    for training in ({}, {"optimizer": "sgd"}):
        check = check_of({"aggregation": "fedavg"}, training)
        moves, samples = [HONEST] * 5 + [9.5 * HONEST], [SAMPLES] * 5 + [10 * SAMPLES]
        assert [refused_of(check, moves, samples=samples) for _ in range(10)] == [[]] * 10


def test_a_resumed_job_goes_on_with_what_was_moved(tmp_path):
    def second(check):
        return refused_of(check, [HONEST] * 5 + [9.5 * HONEST])

    first = check_of({"aggregation": "fedavg"})
    assert second(first) == []
    facts = {"job": "small", "lineage": "small-1", "round": 1, "state": {}, "scores": {}, "settings": {}, "history": {}}
    checkpoint.save(tmp_path / "small-1", checkpoint.Checkpoint(**facts, submitter="", excess=first.excess), keep=1)
    found = checkpoint.find(tmp_path, "small-1", job="small", submitter="")
    assert second(check_of({"aggregation": "fedavg"}, excess=found.excess)) == second(first) == [5]
    file = tmp_path / "small-1" / "round-00001" / checkpoint.FACTS  # one of before there was such a number
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "excess"}))
    assert checkpoint.find(tmp_path, "small-1", job="small", submitter="").excess == {}


@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0, 1e3])
def test_an_optimizer_that_normalizes_moves_by_no_more_than_its_learning_rates(slope):
    """Whatever the size of the gradients, and whether they agree."""
    parameter, generator = nn.Parameter(torch.zeros(20, 30)), torch.Generator().manual_seed(0)
    named = [("down.weight", parameter)]
    optimizer = build_optimizer(named, (), kind="adamw", learning_rate=RATE, head_learning_rate=RATE, weight_decay=0.0)
    assert NORMALIZES == {"adamw": True, "sgd": False}
    for steps in range(1, 50):
        parameter.grad = slope + torch.randn(parameter.shape, generator=generator)
        optimizer.step()
        assert float(parameter.detach().square().mean().sqrt()) <= 1.001 * RATE * steps


def test_the_learning_of_all_rounds_is_that_of_the_schedule():
    settings = TrainingSettings(rounds=5, local_epochs=2, first_epochs=3, warmup=0.0)
    rounds = [sum_of_rate_factors(settings, samples=65, round=number) for number in range(1, 6)]
    total = 5 * (3 + 4 * 2)  # steps: 5 batches, 11 epochs
    assert sum(rounds) == pytest.approx(sum((total - step) / total for step in range(total)))
    assert rounds == sorted(rounds, reverse=True)
    late = sum_of_rate_factors(settings, samples=65, round=3, first=3)  # catches up in its first round
    assert late == pytest.approx(sum(rounds[:3]))
    many = sum_of_rate_factors(settings, samples=10**6, round=1)
    assert many == pytest.approx(10**6 / 65 * 65 / 16 / 5 * rounds[0], rel=0.05)


def test_the_site_that_joins_is_measured_by_the_epochs_that_it_catches_up_with():
    check = check_of({"aggregation": "fedavg"}, schedule=ScheduleSettings(joins={"5": 6}))
    assert refused_of(check, [HONEST] * 5 + [6 * LEARNED], round=6) == []


def test_the_site_that_joins_may_start_from_values_of_its_own():
    """They are as large as first values are, however small the learning rate is; later nothing more is allowed."""
    check = check_of({"aggregation": "fedavg"}, schedule=ScheduleSettings(joins={"5": 6}))
    assert refused_of(check, [HONEST] * 5 + [0.2], round=6) == []
    assert refused_of(check, [HONEST] * 5 + [0.2], round=7) == [5]
    assert refused_of(check, [HONEST] * 5 + [1e3], round=6) == [5]


def test_layers_that_a_site_did_not_send_again_stay_its_last_ones():
    check = check_of({"aggregation": "pia"})
    first, second = ({key: torch.full((2,), value)} for key, value in (("a", 1.0), ("b", 2.0)))
    check.accept({"north": first})
    check.accept({"north": second})
    assert check.own["north"] == {**first, **second}


@each(("name", "refused"), [("adapterfusion", False), ("houlsby", True)])
def test_a_site_that_goes_on_with_its_own_adapter_is_measured_from_there(name, refused):
    """Twelve sites move equally far in every round, one of them against the others, and none starts from the mean."""
    check = check_of({"name": name, "aggregation": "fedavg"}, {"rounds": 30, "optimizer": "sgd"})
    directions = [-1.0] + [1.0] * 11
    previous, found = START, set()
    for number in range(1, 31):
        states = {
            str(k): {key: tensor + 0.01 * number * way for key, tensor in START.items()}
            for k, way in enumerate(directions)
        }
        found |= (outlying := set(check.outlying(states, previous, dict.fromkeys(states, SAMPLES), number)))
        check.accept({site: state for site, state in states.items() if site not in outlying})
        previous = {key: sum(state[key] for state in states.values()) / len(states) for key in START}
    assert ("0" in found) is refused


KEPT = {"aggregation": "pia", "pia": {"share": 0.5, "integration": "weight_space"}}
WHOLE = {"connector": ("connector.projection", KEPT), "head": ("head.0.weight", {**KEPT, "head": "federated"})}


@each("name", WHOLE)
def test_what_starts_wholly_from_the_received_one_does_not_lengthen_the_way_from_where_an_adapter_started(name):
    key, method = WHOLE[name]
    start, own = {**START, key: torch.zeros(10, 10)}, {KEY: START[KEY] + 1, key: torch.full((10, 10), 10.0)}
    sent = {KEY: START[KEY] + 0.6, key: torch.full((10, 10), 0.01)}
    by_hand = math.sqrt((20 * 0.1**2 + 100 * 0.01**2) / 120)  # half of the way of the adapter is kept, not trained
    assert update_length(sent, start, own=own, kept=0.5, as_received=("connector.", "head.")) == pytest.approx(by_hand)
    states = {str(k): {one: tensor + HONEST for one, tensor in start.items()} for k in range(5)} | {"5": sent}
    check = check_of(method, own={"5": own})
    assert check.outlying(states, start, dict.fromkeys(states, SAMPLES), 2) == {}


def test_fedala_goes_on_with_a_connector_of_its_own():
    start, own = {**START, "connector.projection": torch.zeros(100)}, {"connector.projection": torch.full((100,), 10.0)}
    states = {str(k): {one: tensor + HONEST for one, tensor in start.items()} for k in range(5)} | {"5": own}
    for training, refused in (({"personalization": "fedala"}, []), ({}, ["5"])):
        check = check_of({"aggregation": "fedavg"} if training else KEPT, training, own={"5": own})
        assert list(check.outlying(states, start, dict.fromkeys(states, SAMPLES), 2)) == refused

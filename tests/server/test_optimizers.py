# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Server optimizers against the published algorithms, number by number, and what they leave alone."""

import json
import math

import pytest
import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.methods.settings import MethodSettings
from fedpeft.server import checkpoint
from fedpeft.server.optimizers import ServerSteps

BETA, DECAY, TAU, RATE = 0.8, 0.95, 1e-2, 0.05
KEY, OTHER = "layer.0.output.down.weight", "layer.1.output.down.weight"
SECOND = {  # Reddi et al. 2021, Algorithm 2, lines 12 to 14
    "adagrad": lambda v, d: v + d**2,
    "yogi": lambda v, d: v - (1 - DECAY) * d**2 * math.copysign(bool(v - d**2), v - d**2),
    "adam": lambda v, d: DECAY * v + (1 - DECAY) * d**2,
}


def settings(name, **others):
    return MethodSettings(
        aggregation="fedavg",
        server_optimizer=name,
        **{
            "server_learning_rate": RATE,
            "server_momentum": BETA,
            "server_decay": DECAY,
            "server_tau": TAU,
            **others,
        },
    )


def by_hand(name, x, aggregated):
    """The global number after each round."""
    m, v, path = 0.0, TAU**2, []
    for one in aggregated:
        change = one - x
        if name == "momentum":  # Hsu et al. 2019
            m = BETA * m + change
            x += RATE * m
        else:
            m, v = BETA * m + (1 - BETA) * change, SECOND[name](v, change)
            x += RATE * m / (math.sqrt(v) + TAU)
        path.append(x)
    return path


@pytest.mark.parametrize("name", ["momentum", *SECOND])
def test_steps_are_those_of_the_papers_also_after_a_resume(name):
    aggregated = [0.5, 0.48, -0.3, 0.0, 2.0]
    steps, state, path = ServerSteps(settings(name)), {KEY: torch.tensor([0.4])}, []
    for one in aggregated:
        steps = ServerSteps(settings(name), steps.moments)
        state = steps.step(state, {KEY: torch.tensor([one])}, [KEY])
        path.append(state[KEY].item())
    assert path == pytest.approx(by_hand(name, 0.4, aggregated), abs=1e-6)


@pytest.mark.parametrize("name", ["momentum", *SECOND])
def test_what_no_site_trained_keeps_value_and_moments(name):
    steps = ServerSteps(settings(name))
    before = {KEY: torch.zeros(2), OTHER: torch.zeros(2)}
    moved = steps.step(before, {KEY: torch.ones(2), OTHER: torch.ones(2)}, [KEY, OTHER])
    kept = {entry: tensor.clone() for entry, tensor in steps.moments[OTHER].items()}
    again = steps.step(moved, {**moved, KEY: torch.ones(2)}, [KEY])
    assert torch.equal(again[OTHER], moved[OTHER])
    assert not torch.equal(again[KEY], moved[KEY])
    torch.testing.assert_close(steps.moments[OTHER], kept, rtol=0, atol=0)


def test_without_an_optimizer_the_aggregated_adapter_is_the_global_one():
    aggregated = {KEY: torch.ones(2)}
    assert ServerSteps(MethodSettings(aggregation="fedavg")).step({}, aggregated, [KEY]) is aggregated


@pytest.mark.parametrize(("name", "rate"), [("momentum", 1.0), ("adam", 0.01), ("yogi", 0.01), ("adagrad", 0.01)])
def test_each_has_a_rate_of_its_own(name, rate):
    without, given = (
        ServerSteps(settings(name, server_learning_rate=one)).step(
            {KEY: torch.zeros(3)}, {KEY: torch.arange(3.0)}, [KEY]
        )
        for one in (None, rate)
    )
    assert torch.equal(without[KEY], given[KEY])


def test_values_keep_their_type():
    half = {KEY: torch.ones(2, dtype=torch.bfloat16)}
    steps = ServerSteps(settings("adam"))
    assert steps.step({KEY: half[KEY] * 0}, half, [KEY])[KEY].dtype == torch.bfloat16
    assert {tensor.dtype for tensor in steps.moments[KEY].values()} == {torch.float32}


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ({"aggregation": "none"}, "makes no global adapter"),
        ({"name": "lora", "aggregation": "svd"}, "makes new factors in every round"),
        ({"name": "lora", "aggregation": "stack"}, "makes new factors in every round"),
        ({"aggregation": "pia", "pia": {"reference": "largest"}}, "pia.reference='largest' may reorder"),
        ({"initialization": "own"}, "has no global adapter to step from"),
        (
            {"aggregation": "pia", "pia": {"share": "agreement", "integration": "weight_space"}},
            "give a number as pia.share",
        ),
        ({"server_momentum": 1}, "server_momentum is 1, it must be below 1"),
        ({"server_optimizer": "adamw"}, "did you mean 'adam'"),
        ({"server_tau": 0}, "server_tau is 0, it must be above 0"),
        ({"server_learning_rate": 0}, "server_learning_rate is 0, it must be above 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(method, reason):
    with pytest.raises(FedpeftError, match=reason):
        MethodSettings(**{"server_optimizer": "adam", **method})


def test_moments_that_are_gone_from_a_checkpoint_are_not_taken_for_none(tmp_path):
    facts = {"job": "small", "lineage": "small-1", "round": 1, "state": {}, "scores": {}, "settings": {}, "history": {}}
    moments = {KEY: {"momentum": torch.ones(2)}}
    checkpoint.save(tmp_path / "small-1", checkpoint.Checkpoint(**facts, submitter="", moments=moments), keep=1)
    folder = tmp_path / "small-1" / "round-00001"

    def found():
        return checkpoint.find(tmp_path, "small-1", job="small", submitter="").moments

    assert found().keys() == {KEY}
    written = json.loads((folder / checkpoint.FACTS).read_text())
    (folder / checkpoint.FACTS).write_text(json.dumps({k: v for k, v in written.items() if k != "parts"}))
    assert found().keys() == {KEY}  # one of before the parts were listed
    (folder / checkpoint.FACTS).write_text(json.dumps(written))
    (folder / checkpoint.PARTS["moments"]).unlink()
    with pytest.raises(FedpeftError, match=r"cannot be read .*moments\.safetensors.*remove that folder to continue"):
        found()

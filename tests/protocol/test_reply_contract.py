# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A reply is usable only as it was announced and requested; a refusal names the site."""

import dataclasses

import pytest
import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.protocol.reply_contract import check_train_reply
from fedpeft.protocol.types import METRICS, TASKS, TrainOrder, TrainReply, empty_reply

SCHEMA = {"layer.0.output.down.weight": [2, 3], "layer.0.output.down.bias": [2]}
ORDER = TrainOrder(lineage="job-1", round=1, base=0, version=0, layers=None, scored=False, state={})
EXPECTED = {"site": "slake", "order": ORDER, "schema": SCHEMA, "dtype": "float32", "samples": 5}


def reply(**changes) -> TrainReply:
    state = {key: torch.ones(shape) for key, shape in SCHEMA.items()}
    values = {
        "round": 1,
        "samples": 5,
        "metrics": dict.fromkeys(METRICS, 0.5),
        "scores": [],
        "seconds": 1.0,
        "problem": "",
        "state": state,
    }
    return TrainReply(**{**values, **changes})


def changed(key: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**reply().state, key: tensor}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state": {}}, "lacks layer.0.output.down.bias, layer.0.output.down.weight"),
        ({"state": changed("head.weight", torch.ones(1))}, "unannounced keys head.weight"),
        ({"state": changed("layer.0.output.down.bias", torch.ones(3))}, r"shape \[3\], announced was \[2\]"),
        (
            {"state": changed("layer.0.output.down.bias", torch.tensor([1.0, float("nan")]))},
            "NaN or infinity in layer.0",
        ),
        ({"state": changed("layer.0.output.down.bias", torch.ones(2, dtype=torch.long))}, "only dense floating-point"),
        ({"round": 2}, "answered for round 2 in round 1"),
        ({"samples": 10**9}, "reports 1000000000 training samples"),
        ({"problem": "out-of-memory"}, "could not finish round 1: a batch does not fit"),
        ({"metrics": {**dict.fromkeys(METRICS, 0.5), "answer": "tumour"}}, "sent metrics"),
        ({"metrics": dict.fromkeys(METRICS, float("inf"))}, "must be a finite number"),
        ({"seconds": 1e10}, "seconds of work"),
        ({"metrics": dict.fromkeys(METRICS, 1.5)}, "must be a fraction from 0 to 1"),
        ({"seconds": float("inf")}, "reports inf seconds"),
        ({"state": changed("layer.0.output.down.bias", torch.tensor([1.0, -1e38]))}, r"sent -1e\+38 in layer\.0"),
    ],
)
def test_a_bad_reply_is_refused_by_name(changes, message):
    with pytest.raises(FedpeftError, match=message) as refused:
        check_train_reply(reply(**changes), **EXPECTED)
    assert "slake" in str(refused.value)
    assert "problem" in changes or str(refused.value).endswith(" or leave it out of federation.sites.")


def test_a_reply_as_it_was_announced_is_not_refused():
    check_train_reply(reply(), **EXPECTED)


def test_only_the_layers_of_the_order_are_expected():
    with pytest.raises(FedpeftError, match=r"has unannounced keys layer\.0"):
        check_train_reply(reply(), **{**EXPECTED, "order": dataclasses.replace(ORDER, layers=[1])})


@pytest.mark.parametrize("task", TASKS)
def test_an_empty_reply_holds_a_problem_and_nothing_else(task):
    empty = empty_reply(TASKS[task].reply, round=3, problem="out-of-memory", setting="training.batch_size")
    assert type(empty) is TASKS[task].reply
    assert (empty.problem, empty.setting) == ("out-of-memory", "training.batch_size")
    assert getattr(empty, "round", 3) == 3
    for name in {"state", "schema", "samples", "scores", "seconds", "sum_key", "dataset"} & set(vars(empty)):
        assert not getattr(empty, name), name
    assert not any(getattr(empty, "metrics", {}).values())

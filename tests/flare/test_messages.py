# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedpeft.errors import FedpeftError
from fedpeft.flare.messages import (
    METRICS,
    Hello,
    Introduction,
    ScoreOrder,
    ScoreReply,
    TrainOrder,
    TrainReply,
)
from fedpeft.flare.reply_contract import check_reply

SCHEMA = {"layer.0.output.down.weight": [2, 3], "layer.0.output.down.bias": [2]}
EXPECTED = {"site": "slake", "round": 1, "schema": SCHEMA, "dtype": "float32", "samples": 5, "scores": 0}


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


@pytest.mark.parametrize(
    "message",
    [
        Hello(version="1"),
        Introduction(version="1", schema=SCHEMA, classes=3, samples={"train": 5}),
        ScoreOrder(lineage="job-1", round=2, base=1, version=2, state={"a": torch.ones(2)}),
        ScoreReply(round=2, scores=[0.25, 0.75], seconds=0.1, problem=""),
        TrainOrder(
            lineage="job-1",
            round=2,
            base=1,
            version=2,
            layers=[0, 3],
            scored=True,
            state={"a": torch.ones(2, dtype=torch.bfloat16)},
        ),
        TrainOrder(lineage="job-1", round=1, base=0, version=0, layers=None, scored=False, state={}),
        reply(),
    ],
)
def test_messages_survive_the_way_through_flare(message):
    back = type(message).from_model(FLModelUtils.from_shareable(FLModelUtils.to_shareable(message.to_model(round=1))))
    assert vars(back).keys() == vars(message).keys()
    for name, value in vars(message).items():
        if name == "state":
            assert back.state.keys() == value.keys()
            assert all(torch.equal(back.state[key], tensor) for key, tensor in value.items())
        else:
            assert getattr(back, name) == value


def test_a_message_with_an_undeclared_field_is_refused():
    model = Hello(version="1").to_model()
    model.meta["fedpeft"]["labels"] = ["tumour"]
    with pytest.raises(FedpeftError, match="sent no Hello message"):
        Hello.from_model(model)


def test_a_message_without_tensors_refuses_tensors():
    model = Hello(version="1").to_model()
    model.params = {"head.weight": torch.ones(1)}
    with pytest.raises(FedpeftError, match="sent tensors in a Hello message: head"):
        Hello.from_model(model)


def changed(key: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**reply().state, key: tensor}


@pytest.mark.parametrize(
    ("changes", "told"),
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
    ],
)
def test_a_bad_reply_is_refused_by_name(changes, told):
    with pytest.raises(FedpeftError, match=told) as refused:
        check_reply(reply(**changes), **EXPECTED)
    assert "slake" in str(refused.value)


def test_a_good_reply_passes():
    check_reply(reply(), **EXPECTED)

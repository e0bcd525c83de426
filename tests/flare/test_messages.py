# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from nvflare.app_common.abstract.fl_model import ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedpeft.core.errors import FedpeftError
from fedpeft.flare.messages import from_model, model_of, to_model
from fedpeft.protocol.types import METRICS, Hello, Introduction, ScoreOrder, ScoreReply, TrainOrder, TrainReply

ORDER = {"lineage": "job-1", "round": 1, "base": 0, "version": 0, "layers": None, "scored": False, "state": {}}
SCHEMA = {"layer.0.output.down.weight": [2, 3], "layer.0.output.down.bias": [2]}


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
    back = from_model(type(message), FLModelUtils.from_shareable(FLModelUtils.to_shareable(to_model(message, round=1))))
    assert vars(back).keys() == vars(message).keys()
    for name, value in vars(message).items():
        if name == "state":
            assert back.state.keys() == value.keys()
            assert all(torch.equal(back.state[key], tensor) for key, tensor in value.items())
        else:
            assert getattr(back, name) == value


def test_tensors_leave_contiguous_as_flare_sends_no_others():
    turned = torch.arange(6.0).reshape(2, 3).T
    assert not turned.is_contiguous()
    sent = to_model(ScoreOrder(lineage="a", round=1, base=0, version=1, state={"k": turned})).params["k"]
    assert sent.is_contiguous()
    assert torch.equal(sent, turned)


def test_a_message_with_an_undeclared_field_is_refused():
    model = to_model(Hello(version="1"))
    model.meta["fedpeft"]["labels"] = ["tumour"]
    with pytest.raises(FedpeftError, match="sent no Hello message"):
        from_model(Hello, model)


@pytest.mark.parametrize("message", [TrainOrder(**ORDER), reply()])
@pytest.mark.parametrize("kind", ["WEIGHT_DIFF", "COLLECTION", "METRICS", "STATISTICS", None, 7])
def test_content_of_another_kind_than_whole_weights_is_refused_in_both_directions(message, kind):
    shareable = FLModelUtils.to_shareable(to_model(message, round=1))
    shareable["DXO"]["kind"] = kind
    with pytest.raises(FedpeftError, match=r"sent content of kind .*, and only WEIGHTS is read"):
        from_model(type(message), model_of(shareable))


def test_a_model_that_holds_differences_is_refused():
    model = to_model(reply())
    model.params_type = ParamsType.DIFF
    with pytest.raises(FedpeftError, match="sent content of kind 'DIFF'"):
        from_model(TrainReply, model)


def test_a_message_without_tensors_refuses_tensors():
    model = to_model(Hello(version="1"))
    model.params = {"head.weight": torch.ones(1)}
    with pytest.raises(FedpeftError, match="sent tensors in a Hello message: head"):
        from_model(Hello, model)

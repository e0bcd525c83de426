# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Ten thousand spoilt replies through the controller: none ends the job, none changes the model.

Two sites reply as they should, all others send something spoilt. Every sound adapter is the same one, so that the
global adapter must be that one, whoever is accepted. Where introductions are spoilt, layers are scheduled and the
spoilt sites come first, so that they are also asked for the adapter that all start from.
"""

import copy
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from harness import LAYERS, SCHEDULE, START, Harness, starting
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from nvflare.apis.dxo import DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import ReservedHeaderKey
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedpeft.flare import controller as module
from fedpeft.flare.messages import FIELDS, to_model
from fedpeft.protocol.types import METRICS, ScoreReply, TrainReply
from fedpeft.server import job_run

pytestmark = pytest.mark.slow

HONEST = ["slake", "vqa-rad"]
SPOILT = [f"spoilt-{number}" for number in range(50)]
SOUND = {key: torch.full(shape, 0.25) for key, shape in LAYERS.items()}
KEY = min(SOUND)
NOT_A_TENSOR_TO_ACCEPT = [
    torch.full((2, 2), float("nan")),
    torch.full((2, 2), 3e38),
    torch.ones(2, 2).double(),
    torch.ones(2, 2, dtype=torch.long),
    torch.ones(2, 2, dtype=torch.complex64),
    torch.ones(2, 2).to_sparse(),
    torch.ones(2, 2).to(torch.float8_e4m3fn),
    torch.nn.Parameter(torch.ones(2, 2)),
    torch.ones(2, 2, device="meta"),
    torch.ones(4),
    torch.ones(()),
    torch.ones(0, 2),
    torch.zeros(1, 1).expand(1000, 1000),
]
NESTED = []
for _ in range(5000):
    NESTED = [NESTED]

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**53),
    st.sampled_from([-1, 10**12, 1e308, float("nan"), float("inf"), "\x1b[31m\nforged line", "x" * 10**5]),
    st.just(5000).map(lambda digits: 10**digits),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.sampled_from([torch.ones(3), torch.tensor(float("nan")), ..., set(), object(), int]),
)
names = st.one_of(st.text(max_size=8), st.integers(), st.none(), st.booleans(), st.just((1, "a")))
junk = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=4
) | st.sampled_from([NESTED])


def at(path, value):
    """A change of a Shareable: put a value somewhere, or take away what is there (...)."""

    def change(shareable):
        inner = shareable
        for name in path[:-1]:
            inner = inner[name]
        if value is ...:
            inner.pop(path[-1], None)
        else:
            inner[path[-1]] = value

    return change


def changes_of(declared):
    meta, tensors = ("DXO", "meta"), ("DXO", "data")
    field = st.sampled_from(sorted(declared)) | names
    nested = [("metrics", name) for name in METRICS] if "metrics" in declared else []
    nested += [("samples", "train"), ("schema", KEY)] if "schema" in declared else []
    bad = st.sampled_from(NOT_A_TENSOR_TO_ACCEPT) | junk
    headers = st.sampled_from([ReservedHeaderKey.RC, AppConstants.CURRENT_ROUND, AppConstants.VALIDATE_TYPE, "job_id"])
    codes = [code for name, code in vars(ReturnCode).items() if name.isupper()]
    kinds = [kind for name, kind in vars(DataKind).items() if name.isupper()]
    places = [
        (field.map(lambda name: (*meta, FIELDS, name)), junk),
        (st.sampled_from(nested or [("round",)]).map(lambda path: (*meta, FIELDS, *path)), junk),
        (st.just((*tensors, KEY)), bad),
        (names.map(lambda name: (*tensors, name)), bad),
        (st.sampled_from(["kind", "data", "meta"]).map(lambda name: ("DXO", name)), junk),
        (st.just(("DXO", "kind")), st.sampled_from(kinds)),
        (st.just((*meta, FIELDS)), junk),
        (names.map(lambda name: (*meta, name)), junk),
        (st.just(("DXO",)), junk),
        (st.just((ReservedHeaderKey.HEADERS,)), junk),
        (headers.map(lambda name: (ReservedHeaderKey.HEADERS, name)), junk),
        (st.just((ReservedHeaderKey.HEADERS, ReservedHeaderKey.RC)), st.sampled_from(codes)),
    ]
    return st.one_of(st.tuples(*place).map(lambda place: at(*place)) for place in places)


def greeting(site):
    return replace(starting(site), budget=3)


def scores(site, order):
    return ScoreReply(round=order.round, scores=[0.5, 0.3, 0.2], seconds=0.1, problem="")


def trained(site, order):
    values = {"metrics": dict.fromkeys(METRICS, 0.5), "scores": [], "seconds": 1.0, "problem": "", "state": SOUND}
    return TrainReply(round=order.round, samples=5, **values)


class Silent:
    """A record that writes nothing."""

    folder = Path()

    def __init__(self, *args, **kwargs):
        self.history = {}

    def __getattr__(self, name):
        return lambda *args, **kwargs: []


def run(monkeypatch, **spoilt):
    """A job of one round in which the spoilt sites' replies to one task are changed."""
    monkeypatch.setattr(module, "run_folder", lambda fl_ctx: None)
    monkeypatch.setattr(module, "lineages_folder", lambda fl_ctx: Path(tempfile.gettempdir()))
    monkeypatch.setattr(job_run, "prune", lambda *args: None)
    monkeypatch.setattr(job_run, "RunRecorder", Silent)
    monkeypatch.setattr(job_run, "export_adapter", lambda *args, **kwargs: None)

    def answer(task, sound):
        def reply(site, *order):
            message = sound(site, *order)
            if task == "hello" and not harness.hello.initial:
                message = replace(message, state={})
            if task == "score":
                assert all(torch.equal(order[0].state[key], tensor) for key, tensor in START.items())
            change = spoilt.get(task, {}).get(site)
            if change is None:
                return message
            shareable = copy.deepcopy(FLModelUtils.to_shareable(to_model(message)))
            change(shareable)
            return shareable

        return reply

    harness = Harness(
        answer("hello", greeting),
        answer("train", trained),
        answer("score", scores),
        rounds=1,
        quorum=len(HONEST),
        schedule={} if "train" in spoilt else {**SCHEDULE, "budget": 3},
        sites=[*SPOILT, *HONEST],
    )
    harness.run()
    assert harness.panics == []
    assert all(torch.allclose(harness.saved[-1][key], tensor) for key, tensor in SOUND.items())


FIELDS_OF = {
    "hello": vars(greeting(HONEST[0])).keys() - {"state"},
    "score": {field.name for field in fields(ScoreReply)},
    "train": {field.name for field in fields(TrainReply)} - {"state"},
}
JOBS = {"hello": 60, "score": 50, "train": 100}


@pytest.mark.parametrize("task", JOBS)
def test_no_reply_ends_the_job_or_changes_the_model(monkeypatch, task):
    changes = st.lists(changes_of(FIELDS_OF[task]), min_size=len(SPOILT), max_size=len(SPOILT))

    @settings(
        max_examples=JOBS[task],
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(changes)
    def holds(drawn):
        run(monkeypatch, **{task: dict(zip(SPOILT, drawn, strict=True))})

    holds()

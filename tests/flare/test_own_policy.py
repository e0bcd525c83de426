# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site of a consortium without its site policy does nothing; only the simulator does without one."""

import json

import pytest
import torch
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedpeft.core.errors import LocalError
from fedpeft.flare.executor import SiteExecutor
from fedpeft.flare.messages import from_model, to_model
from fedpeft.flare.policy import policy_of, simulated
from fedpeft.job.site_policy import SitePolicy
from fedpeft.protocol.outgoing_reply import without_withheld
from fedpeft.protocol.types import HELLO, METRICS, TRAIN, Hello, Introduction, TrainOrder, TrainReply

SECRET = "/home/lead/patient-7"
SECTIONS = {"backbone": {}, "method": {}, "training": {"rounds": 2}, "data": {}, "schedule": {}}


@pytest.mark.parametrize(
    ("flag", "kit", "expected"),
    [(True, False, True), (True, True, False), (None, False, False), (None, True, False), (False, False, False)],
)
def test_only_flares_simulator_is_one(context, flag, kit, expected):
    assert simulated(context(flag=flag, kit=kit)) is expected


def test_the_simulator_has_no_policy_and_a_site_needs_one(context, tmp_path):
    assert policy_of(context(flag=True, kit=False)) is None
    with pytest.raises(LocalError) as refused:
        policy_of(context())
    assert refused.value.code == "site-file-missing"
    (tmp_path / "local" / "fedpeft.json").write_text(json.dumps({"max_rounds": 3}))
    assert policy_of(context()) == SitePolicy(max_rounds=3)


def answer(context, task, order, **sections):
    """What a site with these sections in its job answers; no training process is started for it."""
    executor = SiteExecutor(**{**SECTIONS, **sections})
    executor._supervisor.close()
    context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
    shareable = executor.execute(task, FLModelUtils.to_shareable(to_model(order, round=0)), context, Signal())
    assert SECRET not in repr(shareable)
    return FLModelUtils.from_shareable(shareable)


TRAINING = TrainOrder(lineage="small-1", round=1, base=0, version=0, layers=None, scored=False, state={})
NOT_ALLOWED = [
    ({"data": {"exclude": [SECRET]}}, "setting-not-allowed", "data.exclude"),
    ({"data": {"root": SECRET}}, "setting-not-allowed", "data.root"),
    ({"data": {"site": SECRET}}, "setting-not-allowed", "data.site"),
    ({"backbone": {"source": SECRET}}, "setting-not-allowed", "backbone.source"),
    ({"training": {"rounds": 10**4}}, "setting-not-allowed", "training.rounds"),
    ({"schedule": {"solver": "own", "score_samples": 1}}, "setting-not-allowed", "schedule.score_samples"),
    ({"data": {"train_size": 10**9}}, "setting-not-allowed", "data.train_size"),
    ({"method": {"name": "full", "aggregation": "fedavg"}}, "setting-not-allowed", "method.name"),
    (
        {"method": {"settings": {"houlsby": {"target_modules": SECRET}}}},
        "setting-not-allowed",
        "method.settings",
    ),
    ({"method": {"settings": {SECRET: 1}}}, "setting-refused", "method.settings"),
    ({"data": {"dataset": SECRET}}, "setting-refused", "data.dataset"),
    ({"training": None}, "setting-refused", "training"),
]


@pytest.mark.parametrize(("sections", "code", "setting"), NOT_ALLOWED)
def test_a_job_that_requests_more_is_refused_by_the_setting_and_leaves_nothing(
    context, tmp_path, sections, code, setting
):
    site = context()
    (tmp_path / "local" / "fedpeft.json").write_text("{}")
    got = from_model(Introduction, answer(site, HELLO, Hello(version="1", lineage="small-1"), **sections))
    assert (got.problem, got.setting, got.samples) == (code, setting, {})
    assert not (tmp_path / "fedpeft").exists(), "nothing is kept for such a job"


@pytest.mark.parametrize(
    ("content", "code"), [(None, "site-file-missing"), ("{", "site-file-unusable"), ('{"x": 1}', "site-file-unusable")]
)
def test_without_a_file_in_order_every_task_is_refused(context, tmp_path, content, code):
    site = context()
    if content:
        (tmp_path / "local" / "fedpeft.json").write_text(content)
    assert from_model(Introduction, answer(site, HELLO, Hello(version="1", lineage="a"))).problem == code
    assert from_model(TrainReply, answer(site, TRAIN, TRAINING)).problem == code


def test_a_server_that_names_the_state_of_another_job_gets_nothing_and_loses_nothing(context, tmp_path):
    site = context()
    (tmp_path / "local" / "fedpeft.json").write_text("{}")
    victim = tmp_path / "fedpeft" / "small-1"
    (victim / "round-00003").mkdir(parents=True)
    (victim / "job.json").write_text(json.dumps({"settings": {"training": {"rounds": 30}}, "jobs": ["theirs"]}))
    got = from_model(Introduction, answer(site, HELLO, Hello(version="1", lineage="small-1")))
    assert got.problem == "state-of-another-job"
    assert (victim / "round-00003").is_dir()


def reply(**changes):
    values = {"samples": 5, "metrics": dict.fromkeys(METRICS, 0.5), "scores": [], "seconds": 1.0, "problem": ""}
    return TrainReply(**{**values, "round": 1, "state": {"layer.0.output.down.bias": torch.ones(2)}, **changes})


def test_what_the_site_keeps_back_does_not_leave():
    sent = reply()
    assert without_withheld(sent, None) is without_withheld(sent, SitePolicy()) is sent
    assert without_withheld(reply(), SitePolicy()).metrics == dict.fromkeys(METRICS, 0.5)
    assert without_withheld(reply(), SitePolicy(metrics=False)).metrics == dict.fromkeys(METRICS)
    head = reply(state={"head.0.weight": torch.ones(2)})
    with pytest.raises(ValueError, match="head is off"):
        without_withheld(head, SitePolicy())
    assert without_withheld(head, SitePolicy(head=True)) is head
    connector = reply(state={"connector.projection": torch.ones(1)})
    with pytest.raises(ValueError, match="connector is off in this site's policy"):
        without_withheld(connector, SitePolicy(head=True))
    assert without_withheld(connector, SitePolicy(connector=True)) is connector


def test_a_member_of_a_sum_sends_no_accuracies_and_refuses_data_by_site(context, tmp_path):
    members = ["north", "south", "west"]
    assert without_withheld(reply(), SitePolicy(sum_with=tuple(members))).metrics == dict.fromkeys(METRICS)
    site = context()
    (tmp_path / "local" / "fedpeft.json").write_text(json.dumps({"sum_with": members}))
    sections = {
        "method": {"aggregation": "fedavg", "secure_sum": True},
        "data": {"dataset": "manifest", "sites": {name: {"dataset": "phantom"} for name in members[1:]}},
    }
    got = from_model(Introduction, answer(site, HELLO, Hello(version="1", lineage="small-1"), **sections))
    assert (got.problem, got.setting, got.samples) == ("setting-not-allowed", "data.sites", {})

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Without a handshake no order is followed, and none fills a site's disk: the real executor, its learner a function."""

import itertools
import json
import os
import time
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedpeft.core.locks import StateLock
from fedpeft.flare.executor import SiteExecutor
from fedpeft.flare.messages import from_model, to_model
from fedpeft.protocol.types import (
    HELLO,
    METRICS,
    SCORE,
    TRAIN,
    Hello,
    Introduction,
    ScoreOrder,
    ScoreReply,
    TrainOrder,
    TrainReply,
)
from fedpeft.site.site_tasks import GIB
from fedpeft.site.supervisor import Answer

KEY = "layer.0.output.down.weight"
SECTIONS = {"backbone": {}, "method": {}, "training": {"rounds": 3}, "data": {}, "schedule": {}}
FACTS = {"train": 50}
REPLIES = {HELLO: Introduction, SCORE: ScoreReply, TRAIN: TrainReply}
INTRODUCTION = {
    "schema": {KEY: [2, 3]},
    "classes": 3,
    "samples": {"train": 50, "validation": 0, "test": 20},
    "dataset": "phantom",
    "procedural": True,
    "backbone": "tiny-vilt",
    "tiny": True,
    "width": 96,
    "family": "vilt",
    "dtype": "float32",
    "budget": 1,
    "finished": 0,
    "baseline": 0.5,
    "unanswerable": 0,
    "tested": 20,
    "facts": FACTS,
}


def measured(value, questions):
    metrics = dict.fromkeys(METRICS, value)
    counts = {"samples": 50, "questions": questions, "validation": 0}
    return {**counts, "metrics": metrics, "scores": [], "facts": FACTS}


class Consortium:
    """A site with a start-up kit and its site policy; every job has a run folder and an executor of its own."""

    def __init__(self, root):
        self.root, self.trained, self.executors, self.submitter = root, [], {}, "north"
        self.accuracies, self.questions = iter([0.12345, 0.2, 0.3]), {"open": 10, "closed": 10}
        self.scores = itertools.count(1.23456)
        for folder in ("startup", "local"):
            (root / folder).mkdir()
        (root / "startup" / "fed_client.json").write_text("{}")
        self.policy()

    def policy(self, **values):
        (self.root / "local" / "fedpeft.json").write_text(json.dumps(values))

    def request(self, request, state=None, **_):
        if request["do"] == "introduce":
            return Answer(values=dict(INTRODUCTION))
        if request["do"] == "score":
            return Answer(values={"scores": [next(self.scores)]})
        self.trained.append(request["round"])
        values = measured(next(self.accuracies), self.questions)
        values["scores"] = [next(self.scores)] if request["scored"] else []
        return Answer(values=values, state={KEY: torch.zeros(2, 3)})

    def answer(self, task, order, *, job="job-1", **sections):
        executor = self.executors.get(job)
        if executor is None:
            executor = self.executors[job] = SiteExecutor(**SECTIONS | sections)
            executor._supervisor.close()
            executor._supervisor.request = self.request
        shareable = FLModelUtils.to_shareable(to_model(order, round=0))
        reply = executor.execute(task, shareable, self._context(task, job), Signal())
        return from_model(REPLIES[task], FLModelUtils.from_shareable(reply))

    def hello(self, lineage="small-1", **how):
        return self.answer(HELLO, Hello(version="1", lineage=lineage), **how)

    def train(self, state=None, *, round=1, lineage="small-1", job="job-1", **values):
        fields = {"base": 0, "version": 1, "layers": None, "scored": False, **values}
        order = TrainOrder(
            lineage=lineage, round=round, state={KEY: torch.ones(2, 3)} if state is None else state, **fields
        )
        return self.answer(TRAIN, order, job=job)

    @property
    def kept(self):
        """Names of the files in all states."""
        return sorted(path.name for path in (self.root / "fedpeft").rglob("*") if path.is_file())

    def _context(self, task, job):
        workspace = SimpleNamespace(
            get_startup_kit_dir=lambda: str(self.root / "startup"),
            get_site_config_dir=lambda: str(self.root / "local"),
            get_root_dir=lambda: str(self.root),
            get_run_dir=lambda job: str(self.root / job),
        )
        context = FLContext()
        context.set_prop(ReservedKey.ENGINE, SimpleNamespace(get_workspace=lambda: workspace), private=True)
        context.set_prop(ReservedKey.IDENTITY_NAME, "north")
        context.set_prop(ReservedKey.RUN_NUM, job)
        context.set_prop(FLContextKey.JOB_META, {"submitter_name": self.submitter, "submitter_org": "hospital"})
        context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
        return context


@pytest.fixture
def site(tmp_path):
    return Consortium(tmp_path)


def test_a_job_that_was_accepted_trains(site):
    assert site.hello().problem == ""
    assert site.train().problem == ""
    assert "received.safetensors" in site.kept


def test_how_often_an_answer_occurs_stays_at_the_site(site):
    assert INTRODUCTION["baseline"] == 0.5
    assert site.hello().baseline is None


def test_without_a_handshake_nothing_is_trained_or_written(site):
    assert site.train().problem == "order-refused"
    assert (site.trained, site.kept) == ([], [])
    assert site.hello().problem == "", "the order did not count as one of the job"


def test_the_handshake_of_another_job_does_not_count(site):
    site.hello()
    assert site.train(job="job-2").problem == "order-refused"
    assert site.trained == []


def test_a_handshake_that_was_refused_does_not_count(site):
    site.policy(kept_gib=0)
    (site.root / "fedpeft").mkdir()
    (site.root / "fedpeft" / "book.jsonl").write_text("full")
    assert site.hello().problem == "state-full"
    site.policy()
    assert site.train().problem == "order-refused"


@pytest.mark.parametrize(
    "state",
    [
        {KEY: torch.ones(2, 3), "head.weight": torch.ones(2)},
        {"layer.7.output.down.weight": torch.ones(2, 3)},
        {KEY: torch.ones(2000, 3)},
        {KEY: torch.ones(2, 3).double()},
    ],
)
def test_tensors_that_the_site_did_not_announce_are_not_written(site, state):
    site.hello()
    assert site.train(state).problem == "order-refused"
    assert site.train(state, base=1, version=2).problem == "order-refused"
    assert site.trained == []
    assert "received.safetensors" not in site.kept


def test_no_order_goes_past_the_room_of_the_sites_file(site):
    site.hello()
    used = sum(path.stat().st_size for path in (site.root / "fedpeft").rglob("*") if path.is_file())
    site.policy(kept_gib=(used + 10) / GIB)
    assert site.train().problem == "state-full"
    assert "received.safetensors" not in site.kept


@pytest.mark.parametrize(("days", "problem"), [(30, "state-full"), (1, "")])
def test_the_state_of_another_job_makes_room_once_it_is_older_than_the_sites_file_says(site, days, problem):
    site.hello()
    site.train()
    site.executors["job-1"].handle_event(EventType.END_RUN, site._context(HELLO, "job-1"))
    old = time.time() - 10 * 24 * 3600
    for path in [site.root / "fedpeft", *(site.root / "fedpeft").rglob("*")]:
        os.utime(path, (old, old))
    used = sum(path.stat().st_size for path in (site.root / "fedpeft").rglob("*") if path.is_file())
    site.policy(kept_gib=(used - 1) / GIB, kept_days=days)
    assert site.hello(job="job-2", lineage="small-2").problem == problem
    assert (site.root / "fedpeft" / "small-1").exists() == bool(problem)


def test_two_jobs_do_not_share_a_state(site, monkeypatch):
    monkeypatch.setattr(StateLock.take, "__kwdefaults__", {"patience": 0})
    site.hello()
    assert site.hello(job="job-2").problem == "state-in-use"
    site.executors["job-1"].handle_event(EventType.END_RUN, site._context(HELLO, "job-1"))
    assert site.hello(job="job-3").problem == ""


@pytest.mark.parametrize("sections", [{"backbone": {"text_length": 30}}, {"data": {"split": "paper"}}])
def test_a_job_with_other_data_or_another_backbone_does_not_go_on_from_a_state(site, sections):
    site.hello()
    assert site.hello(job="job-2", **sections).problem == "state-of-another-job"


def test_a_job_of_another_lead_does_not_go_on_from_a_state(site):
    site.hello()
    site.executors["job-1"].handle_event(EventType.END_RUN, site._context(HELLO, "job-1"))
    site.submitter = "south"
    assert site.hello(job="job-2").problem == "state-of-another-job"
    site.submitter = "north"
    assert site.hello(job="job-3").problem == ""


def test_what_leaves_of_a_round_is_rounded_and_leaves_once(site):
    site.hello()
    first = site.train()
    assert first.metrics["overall"] == first.metrics["open"] == 0.12
    assert site.train().metrics == first.metrics, "another model in the same round is not measured"
    assert site.train(round=2).metrics["overall"] == 0.3
    assert site.trained == [1, 1, 2]


def test_scores_are_rounded_and_those_of_another_model_in_the_same_round_do_not_leave(site):
    site.hello(schedule={"solver": "exact", "budget": 1})
    orders = [
        ScoreOrder(lineage="small-1", round=1, state={KEY: torch.full((2, 3), value)}, base=0, version=version)
        for version, value in enumerate([0.5, 1.5], 1)
    ]
    assert [site.answer(SCORE, order).scores for order in orders] == [[1.23], [1.23]]


def test_scores_that_come_with_replies_are_rounded_and_leave_once(site):
    site.hello(schedule={"solver": "exact", "budget": 1, "scoring": "with_reply"})
    order = {"layers": [0], "scored": True}
    assert [site.train(version=version, **order).scores for version in (1, 2)] == [[1.23]] * 2
    assert site.train(round=2, version=3, **order).scores == [3.23]


@pytest.mark.parametrize(("samples", "leaves"), [(8, False), (15, False), (16, True)])
def test_losses_on_few_samples_do_not_leave(site, samples, leaves):
    """Of 15 that are asked for 8 are measured, and min_test_samples is 10."""
    site.hello(method={"probe_samples": samples})
    metrics = site.train().metrics
    assert all((metrics[name] is not None) == leaves for name in ("loss_start", "loss_end"))


def test_a_group_of_few_questions_is_not_measured(site):
    site.questions = {"open": 19, "closed": 1}
    site.hello()
    metrics = site.train().metrics
    assert (metrics["overall"], metrics["open"], metrics["closed"]) == (0.12, None, None)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The site's side without FLARE's network and without a learner: the training process is a function."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from full_disk import full_disk
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedpeft.core.workspace import PROBLEM
from fedpeft.flare import executor as executor_module
from fedpeft.flare import executor as module
from fedpeft.flare.messages import from_model, to_model
from fedpeft.protocol.types import METRICS, SCORE, TRAIN, ScoreOrder, ScoreReply, TrainOrder, TrainReply
from fedpeft.site.connection import Aborted, Lost
from fedpeft.site.site_tasks import SitePlace, SiteTasks


def order(**changes):
    values = {"round": 2, "base": 0, "version": 0, "layers": [1], "scored": True, "state": {"layer.1.a": torch.ones(2)}}
    return TrainOrder(lineage="first", **{**values, **changes})


ORDER = order()
SCORING = ScoreOrder(lineage="first", round=2, base=0, version=0, state={})
FIGURES = dict.fromkeys(METRICS, 0.5) | {"undeclared": 1.0}
VALUES = {"samples": 5, "metrics": FIGURES, "scores": [0.5, 0.5], "facts": {"train": 5}}
SECTIONS = {"backbone": {}, "method": {}, "training": {"rounds": 2}, "data": {}, "schedule": {}}


class Process:
    """A training process that gives prepared answers; an exception among them is raised, a text is progress."""

    def __init__(self, answers):
        self.answers, self.sent, self.ended = list(answers), [], 0

    def send(self, header, tensors=None):
        self.sent.append((header, tensors))

    def receive(self, aborted, progress):
        while isinstance(answer := self.answers.pop(0), str):
            progress(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self):
        self.ended += 1

    end = kill


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Function from prepared answers to an executor, its context and its one process."""
    monkeypatch.setattr(module, "run_folder", lambda fl_ctx: tmp_path)
    monkeypatch.setattr(module, "policy_of", lambda fl_ctx: None)
    place = SitePlace(site="north", run=tmp_path, lineages=tmp_path, job_id="job-1")
    monkeypatch.setattr(module, "_place", lambda fl_ctx: place)
    monkeypatch.setattr(SiteTasks, "folder_of", lambda self, order: tmp_path / order.lineage)

    def make(*answers):
        process = Process(answers)
        monkeypatch.setattr("fedpeft.site.supervisor.WorkerProcess", lambda *_: process)
        context = FLContext()
        context.set_prop(ReservedKey.IDENTITY_NAME, "north", private=True, sticky=False)
        return module.SiteExecutor(**SECTIONS), context, process

    return make


def execute(executor, context, message=ORDER, task=TRAIN):
    context.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
    return executor.execute(task, FLModelUtils.to_shareable(to_model(message, round=2)), context, Signal())


def reply(shareable, kind=TrainReply):
    return from_model(kind, FLModelUtils.from_shareable(shareable))


def test_the_learner_is_built_when_the_run_starts_and_ended_with_it(site, tmp_path):
    executor, context, process = site()
    executor.handle_event(EventType.START_RUN, context)
    ((opening, _),) = process.sent
    assert (opening["do"], opening["site"], opening["sections"]) == ("open", "north", SECTIONS)
    assert opening["log"] == str(tmp_path / "training.log")
    executor.handle_event(EventType.END_RUN, context)
    assert process.ended
    assert execute(executor, context).get_return_code() == ReturnCode.TASK_ABORTED


def test_an_answer_becomes_a_reply_of_declared_fields(site, tmp_path):
    executor, context, process = site(({"values": VALUES}, {"layer.1.a": torch.zeros(2)}))
    got = reply(execute(executor, context))
    assert (got.problem, got.attempts, got.samples, got.scores) == ("", 1, 5, [0.5, 0.5])
    assert set(got.metrics) == set(METRICS)
    request, state = process.sent[-1]
    folder = str(tmp_path / "first")
    asked = {"do": "train", "round": 2, "layers": [1], "scored": True, "part": 0.0, "salt": "", "folder": folder}
    assert request == asked
    assert torch.equal(state["layer.1.a"], torch.ones(2))


@pytest.mark.parametrize(("below", "said"), [(1.0, True), (0.0, False), (None, False)])
def test_a_site_that_has_learned_nothing_says_so_in_its_log(site, caplog, below, said):
    values = {**VALUES, "metrics": {**FIGURES, "below_constant": below}}
    executor, context, _ = site(({"values": values}, {}))
    with caplog.at_level("INFO"):
        assert reply(execute(executor, context)).metrics["below_constant"] == below
    line = "site north: round 2: training loss 0.500"
    more = "; no better than a constant answer for 3 rounds: set another training.learning_rate"
    assert (line + more * said in caplog.text, more in caplog.text) == (True, said)


def test_how_far_the_training_is_stands_in_the_sites_log_and_fires_no_event(site, monkeypatch):
    executor, context, _ = site("step 12 of 36, about 20.0 s left", ({"values": VALUES}, {}))
    lines = []
    monkeypatch.setattr(executor, "log_info", lambda fl_ctx, line, fire_event=True: lines.append((line, fire_event)))
    assert reply(execute(executor, context)).problem == ""
    assert lines[0] == ("site north: round 2: step 12 of 36, about 20.0 s left", False)


def test_a_lost_process_is_counted_in_the_reply(site):
    executor, context, process = site(Lost("was killed by signal 9"), ({"values": VALUES}, {}))
    got = reply(execute(executor, context))
    assert (got.problem, got.attempts) == ("", 2)
    assert [header["do"] for header, _ in process.sent] == ["open", "train", "open", "train"]


def test_only_changed_tensors_arrive_and_both_attempts_get_them_all(site, tmp_path):
    executor, context, process = site(*[({"values": VALUES}, {})], Lost("ended"), ({"values": VALUES}, {}))
    whole = {"layer.0.a": torch.ones(1), "layer.1.a": torch.ones(2)}
    changed = {"layer.1.a": torch.zeros(2)}
    execute(executor, context, order(round=1, version=1, layers=None, state=whole))
    second = order(base=1, version=2, layers=None, state=changed)
    assert reply(execute(executor, context, second)).attempts == 2
    for _, state in [sent for sent in process.sent if sent[0].get("round") == 2]:
        assert {key: tensor.tolist() for key, tensor in state.items()} == {"layer.0.a": [1.0], "layer.1.a": [0.0, 0.0]}


def test_what_stays_at_the_site_stays_there(site, tmp_path):
    failure = {
        "detail": "/data/patient 7 is no image",
        "code": "data-unusable",
        "setting": "",
        "traceback": "",
        "retryable": False,
    }
    executor, context, _ = site(({"failure": failure}, {}))
    got = reply(execute(executor, context))
    assert (got.problem, got.attempts, got.state) == ("data-unusable", 1, {})
    written = json.loads((tmp_path / PROBLEM).read_text())
    assert written == {"site": "north", "problem": "/data/patient 7 is no image"}


def test_the_server_hears_of_a_full_disk_even_where_no_file_can_say_so(site, tmp_path):
    executor, context, process = site()
    with full_disk():
        got = reply(execute(executor, context, order(version=1)))
    assert got.problem == "disk-full"
    assert all(header["do"] == "open" for header, _ in process.sent)
    assert not (tmp_path / PROBLEM).exists()


@pytest.mark.parametrize(
    ("task", "message", "kind"),
    [
        (TRAIN, ORDER, TrainReply),
        (SCORE, SCORING, ScoreReply),
    ],
)
def test_a_process_that_cannot_be_started_is_a_reply(site, monkeypatch, task, message, kind):
    executor, context, _ = site()
    executor._supervisor._process = None

    def refuse(*_):
        raise OSError("Cannot allocate memory: /opt/private/python")

    monkeypatch.setattr("fedpeft.site.supervisor.WorkerProcess", refuse)
    got = reply(execute(executor, context, message, task), kind)
    assert got.problem == "training-process-lost"


def test_an_aborted_task_and_an_unknown_one_have_flares_own_codes(site):
    executor, context, _ = site(Aborted())
    assert execute(executor, context).get_return_code() == ReturnCode.TASK_ABORTED
    assert executor.execute("fold", Shareable(), context, Signal()).get_return_code() == ReturnCode.TASK_UNKNOWN


def test_a_reply_of_an_order_that_is_none_of_ours_says_so(site):
    executor, context, _ = site()
    got = reply(execute(executor, context, SCORING, TRAIN))
    assert (got.problem, got.setting) == ("message-refused", "")


@pytest.mark.parametrize(
    ("code", "given_up"),
    [(ReturnCode.OK, False), (ReturnCode.TASK_UNKNOWN, True), (ReturnCode.COMMUNICATION_ERROR, False), (None, False)],
)
def test_the_executor_asks_the_server_at_intervals_whether_it_still_waits(monkeypatch, code, given_up):
    requests = []

    def send_aux_request(targets, request, **_):
        requests.append(request.get_header(ReservedKey.TASK_ID))
        return {targets[0]: make_reply(code)} if code else {}

    context = FLContext()
    engine = SimpleNamespace(send_aux_request=send_aux_request)
    context.get_engine = lambda: engine
    runner = SimpleNamespace(parent_target="server")
    context.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=False)
    context.set_prop(FLContextKey.TASK_ID, "task 7", private=True, sticky=False)
    clock = iter([0.0, 1.0, 9.0, 9.0, 10.0])
    monkeypatch.setattr(executor_module.time, "monotonic", lambda: next(clock))
    check = executor_module.TaskCheck(context, Signal())
    assert [check(), check(), check()] == [False, given_up, given_up]
    assert requests == ["task 7"]


def test_another_component_of_a_job_cannot_make_it_train(site):
    """It would send the reply itself, past the site's filters."""
    executor, context, _ = site()
    order = FLModelUtils.to_shareable(to_model(ORDER, round=2))
    assert executor.execute(TRAIN, order, context, Signal()).get_return_code() == ReturnCode.TASK_UNKNOWN


@pytest.mark.slow
def test_the_process_that_talks_to_flare_imports_nothing_of_training():
    """It is started anew for every task of a simulated site: transformers and PEFT cost more than all the rest."""
    heavy = "{'torch', 'transformers', 'peft', 'scipy', 'sklearn', 'pandas', 'matplotlib', 'ot', 'pymoo', 'PIL'}"
    code = f"""
import sys
import nvflare.private.fed.app.simulator.simulator_worker, fedpeft.flare.executor
assert not {heavy} & {{*sys.modules}}
fedpeft.flare.executor._import_tensors()
import fedpeft.site.site_tasks, fedpeft.site.sum_member, fedpeft.site.orders, fedpeft.protocol.job_against_policy
assert {heavy} & {{*sys.modules}} <= {{'torch'}}, {heavy} & {{*sys.modules}}
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)

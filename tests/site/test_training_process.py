# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The training process itself: it computes what a learner in this process computes, and never outlives its owner."""

import json
import os
import re
import signal
import subprocess
import sys
from multiprocessing import Pipe

import psutil
import pytest
import torch
from PIL import Image
from safetensors.torch import save

from fedpeft.core.states import digest
from fedpeft.federate import federate
from fedpeft.server.aggregation import aggregate
from fedpeft.site.connection import BadFrame, receive, send, unpack
from fedpeft.site.fork_server import ADDRESS
from fedpeft.site.learner import Learner
from fedpeft.site.supervisor import RequestFailed, WorkerSupervisor
from fedpeft.site.training_process import INTRODUCE, OPEN, SCORE, TRAIN, serve

SITES = ("slake", "vqa-rad")
SCORED = ["schedule.solver=own", "schedule.budget=1", "schedule.score_samples=4"]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ((b"\xff\xfe", b""), "not JSON"),
        ((b"{", b""), "not JSON"),
        ((b"[1]", b""), "not a JSON object but list"),
        ((b"{}", b"\x80\x04."), "not safetensors"),
        ((b"{}", save({"a": torch.ones(4)})[:-4]), "not safetensors"),
    ],
)
def test_a_bad_frame_is_refused(frame, message):
    with pytest.raises(BadFrame, match=message):
        unpack(frame)


def test_a_closed_pipe_is_the_end(tmp_path):
    ours, theirs = Pipe()
    send(ours, {"a": 1}, {"t": torch.ones(2)})
    ours.close()
    assert unpack(receive(theirs))[0] == {"a": 1}
    with pytest.raises(EOFError):
        receive(theirs)


def answers_of(*requests):
    """What `serve` sends back to some requests."""
    frames, answers = [(json.dumps(request).encode(), b"") for request in requests], []

    def read():
        if not frames:
            raise EOFError
        return frames.pop(0)

    try:
        serve(read, lambda header, state: answers.append(header))
    except EOFError:
        return answers, True
    return answers, False


HELLO = {"do": INTRODUCE, "initial": True, "finished": 0, "own": 0}


def opening(sections, folder):
    return {"do": OPEN, "sections": sections, "site": "slake", "log": str(folder / "log"), "policy": None}


def test_bad_settings_are_reported_each_time_and_the_process_goes_on(sections, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpeft.site.training_process._print_to", lambda file: None)
    bad = sections()
    bad["training"]["device"] = "tpu9"
    answers, alive = answers_of(opening(bad, tmp_path), *[{**HELLO, "folder": str(tmp_path)}] * 2)
    assert alive
    assert ["training.device is 'tpu9'" in answer["failure"]["detail"] for answer in answers] == [True, True]
    assert [(answer["failure"]["code"], answer["failure"]["setting"]) for answer in answers] == [
        ("setting-refused", "training.device")
    ] * 2
    assert not answers[0]["failure"]["retryable"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("secret question"), "training-failed"),
        (MemoryError(), "out-of-memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out-of-memory"),
    ],
)
def test_any_other_error_ends_the_process_after_it_was_reported(sections, tmp_path, monkeypatch, error, code):
    monkeypatch.setattr("fedpeft.site.training_process._print_to", lambda file: None)

    def fail(*_):
        raise error

    monkeypatch.setattr(Learner, "score_layers", fail)
    answers, alive = answers_of(
        opening(sections(), tmp_path), *[{"do": SCORE, "folder": str(tmp_path), "round": 1}] * 2
    )
    assert not alive
    failure = answers[0]["failure"]
    assert len(answers) == 1
    assert failure["retryable"]
    assert (failure["code"], failure["setting"]) == (code, "")
    assert "secret" in failure["traceback"] or not str(error).startswith("secret")


@pytest.mark.slow
def test_questions_that_the_backbone_does_not_read_are_said_in_the_sites_log(sections, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fedpeft.site.training_process._print_to", lambda file: None)
    chosen = {**sections(), "backbone": {"name": "tiny-vit"}}
    (answer,), _ = answers_of(opening(chosen, tmp_path), {**HELLO, "folder": str(tmp_path)})
    assert re.search(r"The data ask \d+ different questions and backbone 'tiny-vit' reads", capsys.readouterr().out)
    assert "different questions" not in str(answer)


@pytest.mark.slow
def test_a_round_says_how_far_it_is_before_its_answer(sections, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpeft.site.training_process._print_to", lambda file: None)
    monkeypatch.setattr("fedpeft.site.training_process.StepLines", lambda say: lambda *step: say(str(step)))
    made = sections("training.local_epochs=2")
    request = {"do": TRAIN, "folder": str(tmp_path), "round": 1, "layers": None, "scored": False}
    answers, _ = answers_of(opening(made, tmp_path), request)
    *lines, last = answers
    learner = Learner.from_sections(made, site="slake", folder=tmp_path)
    steps = 2 * len(learner.batches.training(0))
    assert [line["progress"] for line in lines] == [str((step, steps)) for step in range(1, steps + 1)]
    assert last["values"]["samples"] == len(learner.data.train)


def ask(supervisor, request, state=None):
    return supervisor.request(request, state, aborted=lambda: False, report=lambda failure: pytest.fail(failure.detail))


@pytest.fixture
def supervisors(tmp_path, monkeypatch, fork_server_name):
    """Function: a site's supervisor, whose training processes are forked, or each a Python of its own."""
    made = []

    def start(sections, site, *, forked=True):
        monkeypatch.setenv(ADDRESS, fork_server_name if forked else "")
        supervisor = WorkerSupervisor(sections)
        made.append(supervisor)
        (tmp_path / site).mkdir(exist_ok=True)
        supervisor.open(site, tmp_path / site, policy=None)
        return supervisor

    yield start
    for supervisor in made:
        supervisor.close()


@pytest.mark.slow
def test_it_computes_what_a_learner_in_this_process_computes(sections, tmp_path, supervisors):
    chosen = sections("method.initialization=own", "training.learning_rate=0.3")
    learners = {s: Learner.from_sections(chosen, site=s, folder=tmp_path / "here" / s) for s in SITES}
    expected = list(federate(learners))
    there = {site: supervisors(chosen, site, forked=site != "slake") for site in SITES}
    state = {}
    for result in expected:
        replies = {}
        for site, supervisor in there.items():
            request = {"do": TRAIN, "round": result.round, "layers": None, "scored": False}
            answer = ask(supervisor, {**request, "folder": str(tmp_path / site)}, state)
            assert answer.values["metrics"] == result.updates[site].metrics
            replies[site] = (answer.state, answer.values["samples"])
        state, _ = aggregate(replies, learners["slake"].method, previous=state or None)
        assert state.keys() == result.state.keys()
        assert all(torch.equal(state[key], result.state[key]) for key in state)
    psutil.Process(there["slake"].pid).kill()
    again = there["slake"].request(
        {"do": TRAIN, "folder": str(tmp_path / "slake"), "round": 2, "layers": None, "scored": False},
        expected[0].state,
        aborted=lambda: False,
        report=lambda problem: None,
    )
    assert again.attempts == 2
    assert all(torch.equal(tensor, expected[1].updates["slake"].state[key]) for key, tensor in again.state.items())


@pytest.mark.slow
def test_scores_and_introduction_are_the_learners(sections, tmp_path, supervisors):
    chosen = sections(*SCORED)
    learner = Learner.from_sections(chosen, site="slake", folder=tmp_path / "here")
    supervisor = supervisors(chosen, "slake")
    folder = str(tmp_path / "slake")
    introduced = ask(supervisor, {**HELLO, "folder": folder})
    initial = learner.trainable.state()
    assert introduced.values["budget"] == learner.layer_budget()
    assert introduced.values["schema"] == {key: list(tensor.shape) for key, tensor in initial.items()}
    assert all(torch.equal(introduced.state[key], initial[key]) for key in initial)
    assert introduced.values["start_digest"] == digest(initial)
    assert not ask(supervisor, {**HELLO, "finished": 1, "folder": folder}).values["start_digest"]
    scores = ask(supervisor, {"do": SCORE, "folder": folder, "round": 1}, initial).values["scores"]
    assert scores == learner.score_layers(1, initial)
    request = {"do": TRAIN, "folder": folder, "round": 1, "layers": [1], "scored": True}
    trained = ask(supervisor, request, initial)
    update = learner.train_round(1, initial, [1])
    assert all(torch.equal(trained.state[key], update.state[key]) for key in update.state)
    assert trained.values["scores"] == learner.score_trained(1)
    again = ask(supervisor, {**HELLO, "folder": folder})  # data have touched nothing of it
    assert again.values["start_digest"] == digest(again.state) == digest(initial)


def test_data_that_cannot_be_read_are_reported_without_their_path(sections, tmp_path, supervisors):
    chosen = sections()
    chosen["data"] = {"dataset": "manifest", "root": str(tmp_path / "private")}
    with pytest.raises(RequestFailed) as failed:
        ask(supervisors(chosen, "slake"), {**HELLO, "folder": str(tmp_path)})
    assert "private" in failed.value.failure.detail
    assert (failed.value.failure.code, failed.value.failure.setting) == ("data-unusable", "")
    assert failed.value.attempts == 1


@pytest.mark.slow
def test_what_a_site_should_know_of_its_data_is_in_its_own_log_and_nowhere_else(sections, tmp_path, supervisors):
    data = tmp_path / "data"
    data.mkdir()
    rows = ["image,question,answer,split"]
    for number in range(6):
        Image.new("RGB", (9, 9), (number, 0, 0)).save(data / f"secret{number}.png")
        rows.append(
            f"secret{number}.png,Is it{' so' * 50}?,{('yes', 'no')[number % 2]},{'test' if number > 3 else 'train'}"
        )
    (data / "secret0.png").write_bytes(b"no image")
    (data / "manifest.csv").write_text("\n".join([*rows, rows[2]]) + "\n")
    chosen = sections()
    chosen["data"] = {"dataset": "manifest", "root": str(data), "validation_fraction": 0, "unreadable": 0.5}
    answer = ask(supervisors(chosen, "slake"), {**HELLO, "folder": str(tmp_path / "slake")})
    logged = next(tmp_path.rglob("training.log")).read_text()
    assert "secret0.png cannot be decoded" in logged
    assert "5 of 5 texts are longer than backbone.text_length=40 tokens" in logged
    assert "1 left out: another row has the same image, question and answer." in logged
    assert "A constant answer reaches 50.0% on 2 test samples." in logged
    assert "secret" not in str(answer.values)


@pytest.mark.slow
def test_a_crash_leaves_its_last_words_in_the_sites_log(sections, tmp_path, supervisors):
    supervisor = supervisors(sections(), "slake")
    request = HELLO | {"folder": str(tmp_path / "slake")}
    ask(supervisor, request)
    os.kill(supervisor.pid, signal.SIGSEGV)
    reports = []
    again = supervisor.request(request, aborted=lambda: False, report=reports.append)
    assert again.attempts == 2
    assert "was killed by signal 11 (SIGSEGV); what it printed is in" in reports[0].detail
    assert "Fatal Python error: Segmentation fault" in (tmp_path / "slake" / "training.log").read_text()


@pytest.mark.slow
def test_it_ends_with_its_owner_even_if_that_is_killed():
    code = "from fedpeft.site.supervisor import WorkerSupervisor as S; print(S({}).pid, flush=True); input()"
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    worker = psutil.Process(int(owner.stdout.readline()))
    owner.kill()
    owner.communicate()
    assert not psutil.wait_procs([worker], timeout=60)[1]


def test_tensors_come_in_one_order_however_they_were_sent():
    names = [f"layer.{number}.output.up.weight" for number in range(12)]
    for order in (names, names[::-1]):
        ours, theirs = Pipe()
        send(ours, {"do": "train"}, {name: torch.zeros(1) for name in order})
        _, tensors = unpack(receive(theirs))
        assert list(tensors) == sorted(names)


@pytest.mark.parametrize("summed", [True, False])
def test_an_image_replaced_under_its_name_changes_what_a_secure_sum_starts_from(
    sections, tmp_path, monkeypatch, summed
):
    monkeypatch.setattr("fedpeft.site.training_process._print_to", lambda file: None)
    rows = ["image,question,answer,split"]
    for number in range(16):
        Image.new("RGB", (32, 32), (number, 9, 9)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,Is it?,{('yes', 'no')[number % 2]},{'train' if number < 12 else 'test'}")
    (tmp_path / "manifest.csv").write_text("\n".join(rows) + "\n")
    sums = ["method.aggregation=fedavg", "method.secure_sum=true"] if summed else []
    made = {**sections(*sums), "data": {"dataset": "manifest", "root": str(tmp_path)}}
    facts = []
    for color in (3, 4):
        Image.new("RGB", (32, 32), (color, 9, 9)).save(tmp_path / "3.png")
        answers, _ = answers_of(opening(made, tmp_path), {**HELLO, "folder": str(tmp_path / "state")})
        facts.append(answers[-1]["values"]["facts"])
    assert (facts[0] != facts[1]) == summed

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A training process that dies, lies or hangs, seen from the executor's side; no learner, no FLARE."""

import os
import threading
from pathlib import Path

import psutil
import pytest
import torch

from fedpeft.site.connection import Aborted
from fedpeft.site.fork_server import ADDRESS
from fedpeft.site.supervisor import RequestFailed, WorkerSupervisor


def never():
    return False


@pytest.fixture(params=[pytest.param("started", marks=pytest.mark.slow), "forked"])
def supervisor(request, monkeypatch, tmp_path):
    """With a training process of its own Python, and with one that a fork server has forked."""
    monkeypatch.setenv(ADDRESS, request.getfixturevalue("fork_server_name") if request.param == "forked" else "")
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    # on a busy machine a Python takes longer to end than the supervisor waits for it to tell how
    monkeypatch.setattr("fedpeft.site.connection.SECONDS_TO_END", 600)
    made = WorkerSupervisor({"data": {}}, module="stand_in_worker")
    made.open("slake", tmp_path, policy=None)
    yield made
    made.close()


def ask(supervisor, folder, action="nothing", *, times=0, state=None, aborted=never, reports=None, **more):
    request = {"do": action, "times": times, "folder": str(folder), **more}
    report = (reports if reports is not None else []).append
    return supervisor.request(request, state, aborted=aborted, report=report)


@pytest.mark.slow
def test_numbers_and_tensors_of_every_dtype_come_back_to_the_bit(supervisor, tmp_path):
    state = {
        "bf16": torch.randn(3, 2).bfloat16(),
        "float32": torch.randn(2, 3).t(),  # not contiguous
        "int": torch.arange(3),
        "empty": torch.empty(0, 2),
    }
    answer = ask(supervisor, tmp_path, state=state, number=0.1 + 0.2)
    assert answer.state.keys() == state.keys()
    assert all(torch.equal(answer.state[key], state[key]) for key in state)
    assert answer.values["number"] == 0.1 + 0.2
    assert answer.attempts == 1


def test_one_process_answers_all_and_is_opened_once(supervisor, tmp_path):
    first, second = ask(supervisor, tmp_path), ask(supervisor, tmp_path)
    assert first.values == second.values
    assert [opened["site"] for opened in first.values["opened"]] == ["slake"]


def test_lines_of_progress_come_before_the_answer(supervisor, tmp_path):
    lines, request = [], {"do": "tell", "times": 1, "folder": str(tmp_path)}
    answer = supervisor.request(request, aborted=never, report=pytest.fail, progress=lines.append)
    assert (answer.values, answer.attempts) == ({}, 1)
    assert lines[0] == "step 1 of 2"
    assert "\x1b" not in lines[1]
    assert "\n" not in lines[1]


LOST = {
    "die": "was killed by signal 9 (SIGKILL: out of memory?)",
    "die_of_a_nameless_signal": "was killed by signal 35 (of real time)",
    "leave": "ended with exit code 3",
    "babble": "sent a header that is not JSON",
    "stop_halfway": "ended with exit code 0",
    "leave_a_child": "was killed by signal 9",
}


@pytest.mark.parametrize("action", LOST)
def test_a_lost_process_costs_one_attempt(supervisor, tmp_path, action):
    lost, reports = supervisor.pid, []
    answer = ask(supervisor, tmp_path, action, times=1, reports=reports)
    assert answer.attempts == 2
    assert answer.values["pid"] == supervisor.pid != lost
    assert answer.values["opened"][0]["site"] == "slake"
    assert [LOST[action] in failure.detail for failure in reports] == [True]
    assert str(tmp_path) in reports[0].detail
    assert reports[0].code == "training-process-lost"


def test_the_process_after_a_lost_one_gets_the_tensors_again(supervisor, tmp_path):
    state = {"a": torch.ones(2)}
    answer = ask(supervisor, tmp_path, "die", times=1, state=state)
    assert torch.equal(answer.state["a"], state["a"])


@pytest.mark.slow
@pytest.mark.parametrize("action", LOST)
def test_a_process_lost_twice_is_a_problem_with_a_reason(supervisor, tmp_path, action):
    with pytest.raises(RequestFailed) as failed:
        ask(supervisor, tmp_path, action, times=2)
    assert failed.value.attempts == 2
    assert failed.value.failure.code == "training-process-lost"
    assert LOST[action] in failed.value.failure.detail
    assert ask(supervisor, tmp_path).attempts == 1, "the next round must find a new process"


def test_a_process_that_died_between_two_rounds_is_replaced(supervisor, tmp_path):
    ask(supervisor, tmp_path)
    psutil.Process(supervisor.pid).kill()
    assert ask(supervisor, tmp_path).attempts == 2


def test_bad_input_is_not_tried_again(supervisor, tmp_path):
    with pytest.raises(RequestFailed) as failed:
        ask(supervisor, tmp_path, "complain", times=9)
    assert (failed.value.attempts, failed.value.failure.code) == (1, "data-unusable")
    assert (tmp_path / "begun").read_text() == "x"


def test_what_may_end_better_is_tried_again_in_a_new_process(supervisor, tmp_path):
    first = supervisor.pid
    assert ask(supervisor, tmp_path, "stumble", times=1).values["pid"] != first


@pytest.mark.slow
def test_a_missing_module_is_reported_with_its_exit_code(tmp_path):
    supervisor = WorkerSupervisor({}, module="fedpeft.no_such_module")
    with pytest.raises(RequestFailed) as failed:
        ask(supervisor, tmp_path)
    assert "ended with exit code 1" in failed.value.failure.detail


@pytest.mark.slow
def test_an_aborted_round_ends_its_process(supervisor, tmp_path):
    process = psutil.Process(supervisor.pid)
    with pytest.raises(Aborted):
        ask(supervisor, tmp_path, "hang", times=1, aborted=(tmp_path / "begun").exists)
    assert not process.is_running()
    assert ask(supervisor, tmp_path).attempts == 1


@pytest.mark.slow
def test_closing_ends_a_round_under_way(supervisor, tmp_path):
    process = psutil.Process(supervisor.pid)

    def close_once_begun():
        if (tmp_path / "begun").exists():
            threading.Thread(target=supervisor.close).start()
        return False

    with pytest.raises(Aborted):
        ask(supervisor, tmp_path, "hang", times=9, aborted=close_once_begun)
    assert not process.is_running()
    with pytest.raises(Aborted):
        ask(supervisor, tmp_path)

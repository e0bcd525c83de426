# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a user sees when a site does something wrong in a real simulator run."""

import json

import pytest
import torch
from safetensors.torch import load_file
from simulator_runs import sabotage, simulate, workspace_for_tests, write

from fedpeft.federate import federate
from fedpeft.flare.controller import REPLIES
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.simulator
FAULTS = {  # what the site does in a round, and what is said of it
    2: ("nan", "site vqa-rad sent NaN or infinity in layer."),
    4: ("shape", "site vqa-rad sent layer."),
    6: ("no tensors", "sent an adapter that lacks layer."),
    8: ("empty", "site vqa-rad sent no"),
    10: ("extra", "unannounced keys head.weight"),
    12: ("raise", "in 2 attempts: an error in its training code"),
    14: ("out of memory", "in 2 attempts: a batch does not fit into its memory"),
    16: ("full disk", "its disk is full: the site has to make room there"),
    18: ("kill", "in 2 attempts: its training process ended before it answered"),
}
HARDLY_MOVES = 20  # the round in which it moves its adapter by a millionth of what it should


def manifest(run):
    return json.loads((run.results / "manifest.json").read_text())


def history(run):
    return json.loads((run.results / "history.json").read_text())["rounds"]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory, sections):
    """A job with a fault in every second round, and with the quorum all the same."""
    faults = {number: fault for number, (fault, _) in FAULTS.items()} | {HARDLY_MOVES: "hardly moves"}
    chosen = "federation.quorum=1", f"training.rounds={HARDLY_MOVES + 1}"
    run = sabotage(tmp_path_factory.mktemp("faulty"), sections, faults, *chosen)
    assert run.code == 0, run.text
    return run


@pytest.mark.parametrize("number", FAULTS, ids=lambda number: FAULTS[number][0])
def test_a_fault_above_the_quorum_costs_only_that_reply(faulty, number):
    _, reason = FAULTS[number]
    rounds = history(faulty)
    assert reason in rounds[number - 1]["rejected"]["vqa-rad"]
    (fault,) = (fault for fault in manifest(faulty)["faults"] if fault["round"] == number)
    assert fault["site"] == "vqa-rad"
    assert reason in fault["what"]
    assert reason in faulty.text
    assert set(rounds[number]["sites"]) == {"slake", "vqa-rad"}


def test_a_site_that_hardly_moves_does_not_have_the_other_one_refused(faulty):
    """Of two replies it is the lower half."""
    one = history(faulty)[HARDLY_MOVES - 1]
    assert one["rejected"] == {}
    assert set(one["sites"]) == {"slake", "vqa-rad"}


def test_no_other_fault_is_in_the_manifest(faulty):
    assert len(manifest(faulty)["faults"]) == len(FAULTS)
    assert "secret question text" not in (faulty.results / "manifest.json").read_text()


def test_a_fault_below_the_quorum_ends_the_job_by_name(tmp_path, sections):
    """Other faults than this one: tests/flare/test_controller.py."""
    run = sabotage(tmp_path, sections, {2: "raise"})
    assert run.code == 1
    assert "in 2 attempts: an error in its training code" in run.error
    assert "round 2 ended with too few valid replies (1, the quorum is 2)" in run.error
    assert manifest(run)["rounds"] == 1
    assert len(history(run)) == 1
    assert "secret question text" not in (run.results / "manifest.json").read_text()


def test_a_killed_training_process_costs_nothing_but_time(sections, tmp_path):
    run = sabotage(tmp_path, sections, {2: "kill once"})
    assert run.code == 0, run.text
    assert manifest(run)["rounds"] == 2
    assert manifest(run)["faults"] == [
        {"site": "vqa-rad", "round": 2, "what": "its training was begun 2 times; its own log says why"}
    ]
    attempts = [{name: site["attempts"] for name, site in entry["sites"].items()} for entry in history(run)]
    assert attempts == [{"slake": 1, "vqa-rad": 1}, {"slake": 1, "vqa-rad": 2}]
    assert "was killed by signal 9" in (run.workspace / "vqa-rad" / "log.txt").read_text()
    chosen = sections("federation.sites=[slake, vqa-rad]")
    *_, last = federate({s: Learner.from_sections(chosen, site=s, folder=tmp_path / s) for s in ("slake", "vqa-rad")})
    saved = load_file(run.results / "global.safetensors")
    assert all(torch.equal(saved[key], last.state[key]) for key in last.state)


def test_a_killed_site_process_is_not_a_success(sections, tmp_path):
    run = sabotage(tmp_path, sections, {2: "kill FLARE's process"}, "federation.round_timeout=20")
    assert run.code == 1
    assert "vqa-rad" in run.error


def test_a_killed_server_loses_the_round_and_the_resumed_job_ends_alike(tmp_path, sections):
    chosen = "federation.sites=[slake, vqa-rad]", "training.rounds=3"
    workspace = workspace_for_tests(tmp_path / "ws")
    crashing = {"round": 2, "marker": str(tmp_path / "killed")}
    killed = simulate(write(tmp_path / "one", sections(*chosen), crashing=crashing), workspace, threads=2)
    assert killed.code == 1
    assert "Finished rounds: 1" in killed.error
    assert "resume_from=latest" in killed.error
    left = list(tmp_path.rglob(f".{REPLIES}.*"))
    assert len(left) == 1
    assert len(list(left[0].rglob("*.safetensors"))) > 2
    job = write(tmp_path / "two", sections(*chosen, "resume_from=latest"))
    resumed = simulate(job, workspace, threads=2)
    assert resumed.code == 0, resumed.text
    assert manifest(resumed)["resumed"] == {"after_round": 1, "sites_with_other_state": {}}
    assert manifest(resumed)["rounds"] == 3
    assert not list(tmp_path.rglob(f".{REPLIES}.*"))
    learners = {s: Learner.from_sections(sections(*chosen), site=s, folder=tmp_path / s) for s in ("slake", "vqa-rad")}
    *_, last = federate(learners)
    saved = load_file(resumed.results / "global.safetensors")
    assert all(torch.equal(saved[key], last.state[key]) for key in saved)

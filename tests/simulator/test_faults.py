# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a user sees when a site does something wrong in a real simulator run."""

import json

import pytest
import torch
from conftest import simulate, workspace_for_tests, write
from safetensors.torch import load_file

from fedpeft.client.learner import Learner
from fedpeft.federate import federate

pytestmark = pytest.mark.simulator


def manifest(run):
    return json.loads((run.results / "manifest.json").read_text())


def history(run):
    return json.loads((run.results / "history.json").read_text())["rounds"]


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("nan", "site vqa-rad sent NaN or infinity in layer."),
        ("shape", "site vqa-rad sent layer."),
        ("no tensors", "the adapter of site vqa-rad lacks layer."),
        ("empty", "site vqa-rad sent no"),
        ("raise", "in 2 attempts: an error in its training code"),
        ("out of memory", "in 2 attempts: a batch does not fit into its memory"),
        ("kill", "in 2 attempts: its training process ended before it answered"),
    ],
)
def test_a_fault_below_the_quorum_ends_the_job_by_name(sabotaged, deed, told):
    run = sabotaged(deed)
    assert run.code == 1
    assert told in run.error
    assert "round 2 ended with too few valid replies (1, the quorum is 2)" in run.error
    assert manifest(run)["rounds"] == 1
    assert len(history(run)) == 1
    assert "secret question text" not in (run.results / "manifest.json").read_text()


@pytest.mark.parametrize(
    ("deed", "told"),
    [("extra", "unannounced keys head.weight"), ("kill", "its training process ended before it answered")],
)
def test_a_fault_above_the_quorum_costs_only_that_reply(sabotaged, deed, told):
    run = sabotaged(deed, "federation.quorum=1")
    assert run.code == 0, run.text
    assert told in history(run)[1]["rejected"]["vqa-rad"]
    (fault,) = manifest(run)["faults"]
    assert (fault["site"], fault["round"]) == ("vqa-rad", 2)
    assert told in fault["what"]


def test_a_killed_training_process_costs_nothing_but_time(sabotaged, sections, tmp_path):
    run = sabotaged("kill once")
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


def test_a_training_that_hangs_is_ended_and_the_site_takes_part_in_the_next_round(sabotaged):
    run = sabotaged("hang", "federation.quorum=1", "federation.grace=20", "training.rounds=3")
    assert run.code == 0, run.text
    assert "sent no usable reply in round 2" in history(run)[1]["rejected"]["vqa-rad"]
    assert set(history(run)[2]["sites"]) == {"slake", "vqa-rad"}


def test_a_killed_site_process_is_not_a_success(sabotaged):
    run = sabotaged("kill FLARE's process", "federation.round_timeout=20")
    assert run.code == 1
    assert "vqa-rad" in run.error


def test_a_killed_server_loses_the_round_and_the_resumed_job_ends_alike(tmp_path, sections):
    chosen = "federation.sites=[slake, vqa-rad]", "training.rounds=3"
    workspace = workspace_for_tests(tmp_path / "ws")
    mortal = {"round": 2, "marker": str(tmp_path / "killed")}
    killed = simulate(write(tmp_path / "one", sections(*chosen), mortal=mortal), workspace, threads=2)
    assert killed.code == 1
    assert "Finished rounds: 1" in killed.error
    assert "resume_from=latest" in killed.error
    job = write(tmp_path / "two", sections(*chosen, "resume_from=latest"))
    resumed = simulate(job, workspace, threads=2)
    assert resumed.code == 0, resumed.text
    assert manifest(resumed)["resumed"] == {"after_round": 1, "sites_with_other_state": {}}
    assert manifest(resumed)["rounds"] == 3
    learners = {s: Learner.from_sections(sections(*chosen), site=s, folder=tmp_path / s) for s in ("slake", "vqa-rad")}
    *_, last = federate(learners)
    saved = load_file(resumed.results / "global.safetensors")
    assert all(torch.equal(saved[key], last.state[key]) for key in saved)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a user sees when a site does something wrong in a real simulator run."""

import json

import pytest
import torch
from conftest import simulate, workspace_for_tests, write
from safetensors.torch import load_file

from fedpeft.training.federate import federate
from fedpeft.training.learner import Learner

pytestmark = pytest.mark.simulator


def manifest(run):
    return json.loads((run.results / "manifest.json").read_text())


@pytest.mark.parametrize(
    ("deed", "told"),
    [("nan", "site vqa-rad sent NaN or infinity in layer."), ("raise", "RuntimeError in its training code")],
)
def test_a_bad_reply_below_the_quorum_ends_the_job_by_name(sabotaged, deed, told):
    run = sabotaged(deed)
    assert run.code == 1
    assert told in run.error
    assert "round 2 ended with too few valid replies (1, the quorum is 2)" in run.error
    assert manifest(run)["rounds"] == 1
    assert len(json.loads((run.results / "history.json").read_text())["rounds"]) == 1
    assert "secret question text" not in (run.results / "manifest.json").read_text()


def test_a_bad_reply_above_the_quorum_costs_only_that_reply(sabotaged):
    run = sabotaged("extra", "federation.quorum=1")
    assert run.code == 0, run.text
    assert (
        "unannounced keys head.weight"
        in json.loads((run.results / "history.json").read_text())["rounds"][1]["rejected"]["vqa-rad"]
    )


def test_a_killed_site_process_is_not_a_success(sabotaged):
    run = sabotaged("kill", "federation.round_timeout=20")
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

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Processes of a running consortium are killed: what is lost, and how a resumed job ends."""

from pathlib import Path

import pytest
import torch
from kits import SITES, processes_below, wait_until
from safetensors.torch import load_file

from fedpeft.federate import federate
from fedpeft.job.composing import write_job
from fedpeft.report.history_reader import verify
from fedpeft.report.status import run_folder
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.consortium
NAME, ROUNDS = "killed", 6


@pytest.fixture(scope="session")
def true_sites():
    return (SITES[1],)


@pytest.fixture(scope="module")
def chosen(sections):
    """Function from overrides to a job that is long enough to be hit in the middle."""
    fixed = f"federation.sites=[{', '.join(SITES)}]", f"training.rounds={ROUNDS}", "federation.hello_timeout=600"
    return lambda *overrides: sections(*fixed, *overrides)


@pytest.fixture(scope="module")
def expected(chosen, tmp_path_factory):
    """The adapter of a job that nothing happens to."""
    folder = tmp_path_factory.mktemp("expected")
    *_, last = federate({s: Learner.from_sections(chosen(), site=s, folder=folder / s) for s in SITES})
    return last.state


def submitted(federation, sections, folder):
    write_job(folder, NAME, sections)
    return federation.lead.submit_job(str(folder))


def result(federation, job, folder):
    assert federation.lead.wait_for_job(job, timeout=900, poll_interval=0.3)["status"] == "FINISHED:COMPLETED"
    run = run_folder(Path(federation.lead.download_job_result(job, str(folder))))
    return verify(run), load_file(run / "global.safetensors")


def lineages(federation):
    """What the server keeps of these jobs, one folder each."""
    return set((federation.kits / "server" / "fedpeft").glob(f"{NAME}-*"))


def wait_for_a_round(federation, *, besides):
    """Until the server has written the first checkpoint of a job that is not among those before."""
    wait_until(lambda: any(list(new.glob("round-*")) for new in lineages(federation) - besides))


def test_a_killed_training_process_costs_nothing_but_time(federation, chosen, expected, tmp_path):
    before = lineages(federation)
    job = submitted(federation, chosen(), tmp_path / "job")
    wait_for_a_round(federation, besides=before)
    trainers = [
        child
        for process in processes_below(federation.kits / SITES[1])
        for child in process.children()
        if "fedpeft.site.training_process" in " ".join(child.cmdline())
    ]
    assert trainers
    for trainer in trainers:
        trainer.kill()
    manifest, saved = result(federation, job, tmp_path / "download")
    assert manifest["rounds"] == ROUNDS
    assert [fault["site"] for fault in manifest["faults"]] == [SITES[1]]
    assert all(torch.equal(saved[key], expected[key]) for key in expected)


def test_a_killed_server_job_is_resumed_bit_for_bit(federation, chosen, expected, tmp_path):
    before = lineages(federation)
    job = submitted(federation, chosen(), tmp_path / "job")
    wait_for_a_round(federation, besides=before)
    of_job = [p for p in processes_below(federation.kits / "server") if job in " ".join(p.cmdline())]
    assert of_job
    for process in of_job:
        process.kill()
    status = federation.lead.wait_for_job(job, timeout=900, poll_interval=0.3)["status"]
    assert status != "FINISHED:COMPLETED"
    again = submitted(federation, chosen("resume_from=latest"), tmp_path / "again")
    manifest, saved = result(federation, again, tmp_path / "download")
    assert manifest["resumed"]["after_round"] >= 1
    assert manifest["resumed"]["sites_with_other_state"] == {}
    assert manifest["rounds"] == ROUNDS
    assert all(torch.equal(saved[key], expected[key]) for key in expected)

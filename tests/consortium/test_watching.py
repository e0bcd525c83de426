# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What doctor says of real kits beside a running server, and what the server says of a running job."""

import shutil

import pytest
from kits import LEAD, MEMBER, SITES, free_port, provision

from fedpeft.core.errors import FedpeftError
from fedpeft.doctor import examine, open_context
from fedpeft.flare.job_session import JobSession
from fedpeft.report.status import read_progress, run_folder

pytestmark = pytest.mark.consortium


def failures(case):
    """The checks that fail."""
    return [(group, finding) for group, finding in examine(case) if finding.verdict == "fail"]


@pytest.mark.parametrize("name", [*SITES, LEAD])
def test_doctor_passes_the_kits_of_the_committed_project(federation, small_job, name):
    assert not failures(open_context(small_job, startup_kit=federation.kits / name))


def test_doctor_sees_that_the_server_runs_already(federation, small_job):
    groups = {group for group, _ in failures(open_context(small_job, startup_kit=federation.kits / "server"))}
    # hostile jobs that other tests put into the server's store leave files there, which doctor names, too
    assert "ports" in groups <= {"ports", "admission"}


def test_doctor_sees_a_kit_of_another_consortium(federation, tmp_path):
    stranger = provision(tmp_path, port=free_port()) / SITES[0]
    file = stranger / "startup" / "fed_client.json"
    shutil.copy(federation.kits / SITES[0] / "startup" / "fed_client.json", file)
    assert [group for group, _ in failures(open_context(startup_kit=stranger))] == ["ports"]
    shutil.copy(federation.kits / SITES[0] / "startup" / "rootCA.pem", stranger / "startup" / "rootCA.pem")
    ((_, finding),) = failures(open_context(startup_kit=stranger))
    assert "refused this kit" in finding.sentence


@pytest.mark.parametrize("name", [LEAD, MEMBER])
def test_who_may_view_jobs_can_follow_one_to_its_end(finished, name):
    last = finished.followed[name]
    assert (last.state, last.round, last.rounds) == ("completed", 2, 2)
    assert read_progress(run_folder(finished.download)).state == "completed"


def test_an_unknown_job_is_refused(federation):
    with JobSession(federation.kits / LEAD, "no-such-job") as session, pytest.raises(FedpeftError, match="has no job"):
        session.progress()

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site whose processes are killed takes part again, and the job's state is that of its manifest."""

import json
import subprocess
import sys
import time
from pathlib import Path

import hostile_cell
import pytest
from kits import ABSENT, LEAD, SITES, TRUE_ENVIRONMENT, connected, processes_below, session, start, wait_until

from fedpeft import cli
from fedpeft.core.processes import process_tree
from fedpeft.job.composing import write_job
from fedpeft.report.history_reader import verify
from fedpeft.report.status import run_folder

pytestmark = pytest.mark.consortium
GONE = SITES[1]
SERVER = "nvflare.private.fed.app.server.server_train"
WORKER, CLIENT = (f"nvflare.private.fed.app.client.{module}" for module in ("worker_process", "client_train"))
NAME, ROUNDS = "returning", 6
RESTARTS = 3  # of RestartingLauncher


@pytest.fixture(scope="session")
def true_sites():
    return (SITES[1],)


@pytest.fixture
def submitted(federation, sections, tmp_path):
    """Function from overrides to the id of a job that has finished a round, and the folder of its checkpoints."""

    def submit(*overrides):
        fixed = f"federation.sites=[{', '.join(SITES)}]", f"training.rounds={ROUNDS}", "federation.hello_timeout=600"
        write_job(tmp_path / NAME, NAME, sections(*fixed, *overrides))
        kept = federation.kits / "server" / "fedpeft"
        before = set(kept.glob(f"{NAME}-*"))
        job = federation.lead.submit_job(str(tmp_path / NAME))
        (lineage,) = wait_until(lambda: {new for new in kept.glob(f"{NAME}-*") if last_round(new)} - before)
        return job, lineage

    return submit


def test_a_site_whose_processes_are_killed_takes_part_again(federation, submitted, tmp_path, capsys):
    job, lineage = submitted()
    for module in (WORKER, CLIENT):
        reached = last_round(lineage)
        killed = running(federation.kits / GONE, module)
        assert killed
        for process in killed:
            process.kill()
        wait_until(lambda: last_round(lineage) > reached)  # noqa: B023
    assert federation.lead.wait_for_job(job, timeout=900, poll_interval=0.3)["status"] == "FINISHED:COMPLETED"
    run = run_folder(Path(federation.lead.download_job_result(job, str(tmp_path))))
    assert verify(run)["rounds"] == ROUNDS
    assert set(json.loads((run / "history.json").read_text())["rounds"][-1]["sites"]) == set(SITES)
    assert cli.main(["status", job, "--startup-kit", str(federation.kits / LEAD)]) == 0
    assert f"{ROUNDS} of {ROUNDS} rounds" in capsys.readouterr().out


def test_a_job_ends_though_a_site_stays_away(federation, submitted, tmp_path):
    job, lineage = submitted("federation.quorum=1", "federation.grace=1")
    loop = int((federation.kits / GONE / "daemon_pid.fl").read_text())
    for process in process_tree(loop):  # without a word to the server, as when the power fails
        process.kill()
    for process in running(federation.kits / GONE, WORKER):  # one that has begun meanwhile
        process.kill()
    try:
        wait_until(lambda: last_round(lineage) == ROUNDS)
        since = time.monotonic()
        assert federation.lead.wait_for_job(job, timeout=900, poll_interval=0.3)["status"] == "FINISHED:COMPLETED"
        assert time.monotonic() - since < 60  # the promise of docs/consortium.md; FLARE's own patience is 900
    finally:
        start(federation.kits / GONE, true=True)
        wait_until(lambda: "Successfully registered" in (federation.kits / GONE / "console.txt").read_text())
    verify(run_folder(Path(federation.lead.download_job_result(job, str(tmp_path)))))


def killed_often(federation, job):
    """Kill the site's process of a job once more than its launcher starts it again."""
    killed, kit = set(), federation.kits / GONE
    while len(killed) <= RESTARTS:
        (process,) = wait_until(lambda: [one for one in running(kit, WORKER) if one.pid not in killed])
        killed.add(process.pid)
        process.kill()


def terminated(federation, job):
    (process,) = running(federation.kits / GONE, WORKER)
    process.terminate()


def returned(federation, job):
    """End the site's process of a job, and then its client process, which `start.sh` starts again."""
    terminated(federation, job)
    reported, log = f"the process of job {job} at site {GONE} ended", federation.kits / "server" / "log.txt"
    wait_until(lambda: reported in log.read_text())
    (client,) = running(federation.kits / GONE, CLIENT)
    client.kill()


AWAY = f"site {GONE} is away: FLARE's process of this job ended there"
ENDS = {
    "quorum without it": (killed_often, ("federation.quorum=1",), "FINISHED:COMPLETED", AWAY),
    "below the quorum": (terminated, ("federation.grace=1",), "FINISHED:EXECUTION_EXCEPTION", AWAY),
    "it returns": (returned, (), "FINISHED:COMPLETED", ""),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_sites_process_that_ends_for_good_ends_the_job_only_below_the_quorum(federation, submitted, case, tmp_path):
    happens, overrides, status, reason = ENDS[case]
    job, _ = submitted(*overrides)
    happens(federation, job)
    assert federation.lead.wait_for_job(job, timeout=900, poll_interval=0.3)["status"] == status
    run = run_folder(Path(federation.lead.download_job_result(job, str(tmp_path))))
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == ("completed" if status == "FINISHED:COMPLETED" else "failed")
    said = [manifest.get("reason", ""), *(fault["what"] for fault in manifest["faults"])]
    assert any(reason in one for one in said) if reason else not manifest["faults"]
    assert manifest["rounds"] == ROUNDS or manifest["status"] == "failed"


def test_a_registered_site_that_takes_no_part_ends_no_job(federation, submitted, tmp_path):
    job, _ = submitted()
    script = Path(hostile_cell.__file__)
    command = [sys.executable, script, federation.kits / ABSENT, str(federation.port), job, GONE]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600, env=TRUE_ENVIRONMENT).stdout
    answers = dict(line.split(maxsplit=1) for line in sorted(said.splitlines()))
    assert answers.pop("report_job_failure") == "ok"  # a report of a job in which it takes no part changes nothing
    assert answers.pop("fed.event") == "ok BAD_REQUEST_DATA"
    assert len(answers) == 6
    assert set(answers.values()) == {"unauthenticated"}
    assert federation.lead.wait_for_job(job, timeout=900, poll_interval=0.3)["status"] == "FINISHED:COMPLETED"
    manifest = verify(run_folder(Path(federation.lead.download_job_result(job, str(tmp_path)))))
    assert (manifest["rounds"], manifest["faults"]) == (ROUNDS, [])


def test_a_job_of_a_killed_server_is_finished_and_reported_in_one_sentence(federation, submitted, capsys):
    job, _ = submitted()
    (server,) = running(federation.kits / "server", SERVER)
    server.kill()
    federation.lead.close()
    wait_until(lambda: [process for process in running(federation.kits / "server", SERVER) if process != server])
    federation.lead = session(federation.kits / LEAD, seconds=300)
    wait_until(lambda: connected(federation) == set(SITES))
    assert federation.lead.get_job_meta(job)["status"] == "FINISHED:ABNORMAL"
    assert cli.main(["status", job, "--startup-kit", str(federation.kits / LEAD), "--follow"]) == 1
    assert "FLARE says FINISHED:ABNORMAL" in capsys.readouterr().err
    federation.lead.delete_job(job)


def last_round(lineage):
    """The round of the newest checkpoint."""
    return max((int(path.name.partition("-")[2]) for path in lineage.glob("round-*")), default=0)


def running(kit, module):
    """Processes of a kit that run one of FLARE's modules."""
    return [process for process in processes_below(kit) if module in process.info["cmdline"]]

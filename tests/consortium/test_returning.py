# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site whose processes are killed takes part again, and the job's state is that of its manifest."""

import json
from pathlib import Path

import pytest
from kits import LEAD, SITES, processes_below, wait_until

from fedpeft import cli
from fedpeft.jobs import write_job
from fedpeft.status import run_folder
from fedpeft.verify import verify

pytestmark = pytest.mark.consortium
GONE = SITES[1]
NAME, ROUNDS = "returning", 6


@pytest.fixture
def running(federation, sections, tmp_path):
    """The id of a job that has finished a round."""
    fixed = f"federation.sites=[{', '.join(SITES)}]", f"training.rounds={ROUNDS}", "federation.hello_timeout=600"
    write_job(tmp_path / NAME, NAME, sections(*fixed))
    kept = federation.kits / "server" / "fedpeft"
    before = set(kept.glob(f"{NAME}-*"))
    job = federation.lead.submit_job(str(tmp_path / NAME))
    wait_until(lambda: any(list(new.glob("round-*")) for new in set(kept.glob(f"{NAME}-*")) - before))
    return job


def kill(federation, module):
    """Kill the processes of a site that run one of FLARE's modules, as the system does when memory is short."""
    found = [
        p for p in processes_below(federation.kits / GONE) if f"nvflare.private.fed.app.client.{module}" in p.cmdline()
    ]
    assert found
    for process in found:
        process.kill()


@pytest.mark.parametrize("module", ["client_train", "worker_process"])
def test_a_killed_site_takes_part_again(federation, running, module, tmp_path, capsys):
    kill(federation, module)
    assert federation.lead.wait_for_job(running, timeout=900)["status"] == "FINISHED:COMPLETED"
    run = run_folder(Path(federation.lead.download_job_result(running, str(tmp_path))))
    assert verify(run)["rounds"] == ROUNDS
    assert set(json.loads((run / "history.json").read_text())["rounds"][-1]["sites"]) == set(SITES)
    assert cli.main(["status", running, "--startup-kit", str(federation.kits / LEAD)]) == 0
    assert f"{ROUNDS} of {ROUNDS} rounds" in capsys.readouterr().out

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Three hospitals whose files let only a sum leave: keys signed by their kits' certificates, over mutual TLS."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from kits import ABSENT, LEAD, SITES, connected, free_port, provision, session, started, wait_until
from safetensors.torch import load_file

from fedpeft.client.learner import Learner
from fedpeft.federate import federate
from fedpeft.jobs import write_job
from fedpeft.status import run_folder
from fedpeft.verify import verify

pytestmark = pytest.mark.consortium

MEMBERS = (*SITES, ABSENT)


@pytest.fixture(scope="module")
def three(tmp_path_factory, small_policy):
    """A running federation of three sites, whose files name each other in `sum_with`."""
    policy = {**small_policy, "sum_with": list(MEMBERS)}
    kits = provision(tmp_path_factory.mktemp("three"), port=free_port(), sites=MEMBERS, policy=policy)
    with started(*(kits / name for name in ("server", *MEMBERS))):
        federation = SimpleNamespace(kits=kits, lead=session(kits / LEAD))
        wait_until(lambda: connected(federation) == set(MEMBERS))
        yield federation
        federation.lead.close()


@pytest.fixture(scope="module")
def outcome(three, sections, tmp_path_factory):
    """Function: how a job of the three sites ended, and what the lead downloads."""

    def run(*overrides):
        folder = tmp_path_factory.mktemp("job")
        chosen = sections(f"federation.sites=[{', '.join(MEMBERS)}]", "federation.hello_timeout=600", *overrides)
        write_job(folder / "small", "small", chosen)
        job = three.lead.submit_job(str(folder / "small"))
        status = three.lead.wait_for_job(job, timeout=900, poll_interval=0.3)["status"]
        return status, chosen, Path(three.lead.download_job_result(job, str(folder / "download")))

    return run


def test_the_server_gets_the_mean_of_the_bare_loop(outcome, tmp_path):
    status, chosen, download = outcome("method.pia.aligned_at=site", "method.secure_sum=true")
    assert status == "FINISHED:COMPLETED"
    assert set(verify(run_folder(download))["sites"]) == set(MEMBERS)
    *_, last = federate({s: Learner.from_sections(chosen, site=s, folder=tmp_path / s) for s in MEMBERS})
    saved = load_file(run_folder(download) / "global.safetensors")
    assert saved.keys() == last.state.keys()
    assert all(torch.equal(saved[key], last.state[key]) for key in saved)


def test_a_job_that_would_show_single_adapters_is_refused_by_every_site(outcome):
    status, _, download = outcome()
    assert status != "FINISHED:COMPLETED"
    reason = (run_folder(download) / "manifest.json").read_text()
    assert "method.secure_sum" in reason

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A job over mutual TLS ends with the manifest, and computes what it computes without FLARE."""

from pathlib import Path

import pytest
import torch
from kits import SITES
from safetensors.torch import load_file

from fedpeft.status import run_folder
from fedpeft.training.federate import federate
from fedpeft.training.learner import Learner
from fedpeft.verify import verify

pytestmark = pytest.mark.consortium


@pytest.fixture(scope="module")
def download(federation, small_job, tmp_path_factory):
    """What the lead downloads after the small job."""
    job = federation.lead.submit_job(str(small_job))
    assert federation.lead.wait_for_job(job, timeout=900)["status"] == "FINISHED:COMPLETED"
    return Path(federation.lead.download_job_result(job, str(tmp_path_factory.mktemp("download"))))


def test_it_ends_with_the_manifest(download):
    manifest = verify(run_folder(download))
    assert manifest["rounds"] == 2
    assert set(manifest["sites"]) == set(SITES)
    assert {"report/report.html", "history.json", "global.safetensors"} <= set(manifest["files"])


def test_the_loop_without_flare_gives_the_same_adapter(download, sections, tmp_path):
    two = sections(f"federation.sites=[{', '.join(SITES)}]")
    *_, last = federate({s: Learner.from_sections(two, site=s, folder=tmp_path / s) for s in SITES})
    saved = load_file(run_folder(download) / "global.safetensors")
    assert saved.keys() == last.state.keys()
    assert all(torch.equal(saved[key], last.state[key]) for key in saved)


def test_no_log_of_a_site_comes_along(download):
    logs = [path.relative_to(download) for path in download.rglob("*log*")]
    assert logs
    assert not [log for log in logs if any(site in str(log) for site in SITES)]

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A job over mutual TLS ends with the manifest, and computes what it computes without FLARE."""

import json

import pytest
import torch
from kits import SITES
from safetensors.torch import load_file

from fedpeft.federate import federate
from fedpeft.job.site_policy import SitePolicy
from fedpeft.protocol.outgoing_reply import released_metrics
from fedpeft.report.history_reader import verify
from fedpeft.report.status import run_folder
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.consortium


@pytest.fixture
def download(finished):
    """What the lead downloads after the small job."""
    return finished.download


def test_it_ends_with_the_manifest(download):
    manifest = verify(run_folder(download))
    assert manifest["rounds"] == 2
    assert set(manifest["sites"]) == set(SITES)
    assert {"report/report.html", "history.json", "global.safetensors"} <= set(manifest["files"])


@pytest.fixture(scope="module")
def bare_loop(sections, tmp_path_factory):
    """The same job without FLARE: its learners, and its last round."""
    two = sections(f"federation.sites=[{', '.join(SITES)}]")
    folder = tmp_path_factory.mktemp("bare")
    learners = {site: Learner.from_sections(two, site=site, folder=folder / site) for site in SITES}
    *_, last = federate(learners)
    return learners, last


def test_the_loop_without_flare_gives_the_same_adapter(download, bare_loop):
    _, last = bare_loop
    saved = load_file(run_folder(download) / "global.safetensors")
    assert saved.keys() == last.state.keys()
    assert all(torch.equal(saved[key], last.state[key]) for key in saved)


def test_and_the_same_figures_as_the_site_policy_lets_them_out(download, bare_loop, small_policy):
    learners, last = bare_loop
    *_, history = json.loads((run_folder(download) / "history.json").read_text())["rounds"]
    for site, learner in learners.items():
        measured = last.updates[site].metrics
        policy = SitePolicy(**small_policy)
        enough = len(learner.data.validation) >= policy.min_validation_samples
        expected = released_metrics(
            measured, learner.questions, min_questions=policy.min_test_samples, enough_validation=enough
        )
        assert {name: history["sites"][site][name] for name in expected} == expected


def test_no_log_of_a_site_comes_along(download):
    logs = [path.relative_to(download) for path in download.rglob("*log*")]
    assert logs
    assert not [log for log in logs if any(site in str(log) for site in SITES)]

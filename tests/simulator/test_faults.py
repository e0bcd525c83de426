# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a user sees when a site does something wrong in a real simulator run."""

import json

import pytest

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

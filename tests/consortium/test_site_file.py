# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What only a site decides, in a running consortium: a job that asks for it learns the name of the setting."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
from kits import LEAD, SITES

from fedpeft.job.composing import write_job
from fedpeft.report.status import run_folder
from fedpeft.server.checkpoint import FACTS

pytestmark = pytest.mark.consortium
CHOSEN = f"federation.sites=[{', '.join(SITES)}]", "federation.hello_timeout=600"
REFUSED = "site {} cannot take part: its site policy does not allow what the job sets in {}:"


def submitted(federation, folder, name, sections):
    write_job(folder / "job", name, sections)
    job = federation.lead.submit_job(str(folder / "job"))
    federation.lead.wait_for_job(job, timeout=900, poll_interval=0.3)
    return job, run_folder(Path(federation.lead.download_job_result(job, str(folder / "download"))))


def printed(federation, job, run):
    """All that the server wrote of a job, but for the job itself."""
    texts = [file.read_text(errors="replace") for file in run.parent.rglob("*") if _is_written(file, run.parent)]
    return "\n".join(texts) + (federation.kits / "server" / "log.txt").read_text()


def _is_written(file, workspace):
    return file.is_file() and not file.relative_to(workspace).parts[0].startswith("app_")


def test_what_only_a_site_decides_is_refused_by_name(federation, sections, tmp_path):
    secret = tmp_path / "patient-7-of-ward-3"
    secret.mkdir()
    chosen = sections(*CHOSEN)
    chosen["data"]["sites"] = {SITES[0]: {"exclude": [secret.name]}, SITES[1]: {"root": str(secret)}}
    job, run = submitted(federation, tmp_path, "asks", chosen)
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert REFUSED.format(SITES[0], "data.exclude") in manifest["reason"]
    assert REFUSED.format(SITES[1], "data.root") in manifest["reason"]
    assert secret.name not in printed(federation, job, run)
    problem = json.loads((federation.kits / SITES[0] / job / "fedpeft" / "problem.json").read_text())["problem"]
    assert problem.startswith("data.exclude is set: only this site decides which images are excluded")


@contextmanager
def changed_policy(federation, site, **changes):
    """Change the site policy for a while; a job reads it when it starts."""
    file = federation.kits / site / "local" / "fedpeft.json"
    before = file.read_text()
    file.write_text(json.dumps({**json.loads(before), **changes}))
    try:
        yield file
    finally:
        file.write_text(before)


def test_what_goes_beyond_a_sites_limits_is_refused_by_name(federation, sections, tmp_path):
    """Each site has a limit that the other has not."""
    secret = str(tmp_path / "secret")
    chosen = sections(*CHOSEN, f"backbone.source={secret}", "training.rounds=10000")
    with (
        changed_policy(federation, SITES[0], max_rounds=10_000),
        changed_policy(federation, SITES[1], sources=[secret]),
    ):
        job, run = submitted(federation, tmp_path, "asks", chosen)
    reason = json.loads((run / "manifest.json").read_text())["reason"]
    assert REFUSED.format(SITES[0], "backbone.source") in reason
    assert REFUSED.format(SITES[1], "training.rounds") in reason
    assert secret not in printed(federation, job, run)


def test_a_site_without_a_site_policy_takes_part_in_nothing(federation, sections, tmp_path):
    """The other site's policy forbids what the job asks."""
    chosen = sections(*CHOSEN, "schedule.solver=own", "schedule.budget=1", "schedule.score_samples=1")
    with changed_policy(federation, SITES[0]) as file:
        file.unlink()
        _, run = submitted(federation, tmp_path, "asks", chosen)
    reason = json.loads((run / "manifest.json").read_text())["reason"]
    assert f"site {SITES[0]} cannot take part: it has no local/fedpeft.json" in reason
    assert REFUSED.format(SITES[1], "schedule.score_samples") in reason
    assert reason.count("has no local/fedpeft.json") == 1


def test_a_server_that_names_the_state_of_another_job_removes_nothing(federation, finished, sections, tmp_path):
    """Its own checkpoint is forged, so that it goes on with the victim's state after round 1, in another job."""
    lineage = json.loads((run_folder(finished.download) / "manifest.json").read_text())["lineage"]
    kept = {site: sorted(state_of(federation, site, lineage).glob("round-*")) for site in SITES}
    assert all(len(rounds) == 2 for rounds in kept.values())
    attack = sections(*CHOSEN, f"resume_from={lineage}/round-00001", "training.learning_rate=1.0e-3")
    forged = federation.kits / "server" / "fedpeft" / lineage / "round-00001" / FACTS
    facts = json.loads(forged.read_text())
    assert facts["submitter"].startswith(LEAD)
    facts["settings"]["training"]["learning_rate"] = 1e-3
    forged.write_text(json.dumps(facts))
    _, run = submitted(federation, tmp_path / "attack", "fedpia_task1", attack)
    reason = json.loads((run / "manifest.json").read_text())["reason"]
    for site in SITES:
        assert f"site {site} cannot take part: what it kept under this name belongs to another job" in reason
        assert sorted(state_of(federation, site, lineage).glob("round-*")) == kept[site]


def state_of(federation, site, lineage):
    return federation.kits / site / "fedpeft" / lineage

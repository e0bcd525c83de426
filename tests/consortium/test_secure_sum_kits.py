# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Three hospitals whose files let only a sum leave: keys signed by their kits' certificates, over mutual TLS."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from kits import ABSENT, LEAD, SITES, connected, free_port, provision, session, started, wait_until
from safetensors.torch import load_file

import fedpeft
from fedpeft.core.states import digest
from fedpeft.federate import federate
from fedpeft.job.composing import write_job
from fedpeft.job.site_policy import read_policy
from fedpeft.protocol.signed_keys import salt_of, secret_of, start_of
from fedpeft.report.history_reader import verify
from fedpeft.report.status import run_folder
from fedpeft.site.learner import Learner
from fedpeft.site.training_process import training_facts

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


SUM = ("method.pia.aligned_at=site", "method.secure_sum=true", "training.batch_size=4")


@pytest.fixture(scope="module")
def summed(outcome):
    """Function: sections, manifest and final adapter of a job with a secure sum."""

    def run(*overrides):
        status, chosen, download = outcome(*SUM, *overrides)
        assert status == "FINISHED:COMPLETED"
        run = run_folder(download)
        manifest = verify(run)
        assert set(manifest["sites"]) == set(MEMBERS)
        state = load_file(run / "global.safetensors")
        return SimpleNamespace(sections=chosen, manifest=manifest, lineage=manifest["lineage"], state=state)

    return run


@pytest.fixture(scope="module")
def first(summed):
    """A job that nothing happens to."""
    return summed()


def policy_of(three, site):
    return read_policy(three.kits / site / "local" / "fedpeft.json")


def bare(three, job, folder):
    """Learners in this process as the sites have them, and their salts, from the secrets on the sites' disks."""
    made = {
        site: Learner.from_sections(job.sections, site=site, folder=folder / site, policy=policy_of(three, site))
        for site in MEMBERS
    }

    def salt(site, round, received):
        secrets = {name: secret_of(three.kits / name / "fedpeft" / job.lineage) for name in MEMBERS}
        starts = {
            name: start_of(
                secrets[name],
                {
                    "own": round - 1,
                    "data": training_facts(made[name]),
                    "policy": asdict(policy_of(three, name)),
                    "fedpeft": fedpeft.__version__,
                },
            )
            for name in MEMBERS
        }
        return salt_of(secrets[site], job=job.lineage, round=round, starts=starts, received=digest(received))

    return made, salt


def kept(three, job, site):
    """What a site trained in the last round of a job, which is on its disk alone."""
    folder = three.kits / site / "fedpeft" / job.lineage / "round-00002"
    trained = folder / "trained.safetensors"
    return load_file(trained if trained.exists() else folder / "adapter.safetensors")


def apart(one, other):
    return sum(float((one[key].double() - other[key].double()).square().sum()) for key in other) ** 0.5


def test_the_server_gets_the_mean_of_the_bare_loop(three, first, tmp_path):
    made, salt = bare(three, first, tmp_path)
    *_, last = federate(made, salt)
    assert first.state.keys() == last.state.keys()
    assert all(torch.equal(first.state[key], last.state[key]) for key in first.state)
    counts = {site: facts["samples"]["train"] for site, facts in first.manifest["sites"].items()}
    assert counts == {site: update.samples for site, update in last.updates.items()} == dict.fromkeys(MEMBERS, 20)


def test_a_resumed_job_ends_with_the_same_bits(summed, first):
    again = summed(f"federation.resume_from={first.lineage}/round-00001")
    assert again.lineage == first.lineage
    assert all(torch.equal(again.state[key], first.state[key]) for key in first.state)


def test_two_sums_do_not_give_what_changed_at_one_site(three, summed, first, tmp_path):
    """The same job again, after one site has left out a training sample."""
    made, _ = bare(three, first, tmp_path)
    file = three.kits / "slake" / "local" / "fedpeft.json"
    before = file.read_text()
    image = made["slake"].data.train[-1].image_id  # of which there is one question
    file.write_text(json.dumps({**json.loads(before), "exclude": [image]}))
    try:
        second = summed()
    finally:
        file.write_text(before)
    start = made["slake"].values.first
    found, true = (
        {key: factor * (one[key].double() - other[key].double()) for key in start}
        for factor, one, other in (
            (len(MEMBERS), first.state, second.state),  # all announce the same number of samples
            (1, kept(three, first, "slake"), kept(three, second, "slake")),
        )
    )
    assert apart(found, true) > 0.3 * apart(kept(three, first, "slake"), start)


def test_a_job_that_treats_one_site_by_itself_is_refused_by_every_site(outcome):
    status, _, download = outcome(*SUM, "backbone.sites={slake: {text_length: 3}}")
    assert status != "FINISHED:COMPLETED"
    assert "backbone.sites" in (run_folder(download) / "manifest.json").read_text()


def test_a_job_that_would_show_single_adapters_is_refused_by_every_site(outcome):
    status, _, download = outcome()
    assert status != "FINISHED:COMPLETED"
    reason = (run_folder(download) / "manifest.json").read_text()
    assert "method.secure_sum" in reason

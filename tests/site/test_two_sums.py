# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Two secure sums of jobs that differ at one site: whether their difference is that site's."""

from dataclasses import replace

import pytest
import torch

from fedpeft.core.states import digest
from fedpeft.federate import federate
from fedpeft.job.settings import SiteJob
from fedpeft.protocol import signed_keys
from fedpeft.protocol.job_against_policy import load_data
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.slow

SITES = ("slake", "vqa-rad", "vqa-med-2019")
CHOSEN = (
    f"federation.sites=[{', '.join(SITES)}]",
    "method.aggregation=fedavg",
    "method.secure_sum=true",
    "training.batch_size=4",
)


def learner(chosen, site, folder, *, without=0):
    """A site's learner, some of whose training samples are left out."""
    job = SiteJob.from_sections(chosen, site=site)
    data = load_data(None, job)
    return Learner(
        site=site,
        backbone=job.backbone,
        method=job.method,
        training=job.training,
        site_data=replace(data, train=data.train[without:]),
        dataset=job.data.dataset,
        folder=folder,
    )


def salts_of(folder):
    """The salts of sites whose secrets are in their state folders."""

    def salt(site, round, received):
        secret = signed_keys.secret_of(folder / site)
        return signed_keys.salt_of(secret, job="a-1", round=round, starts={}, received=digest(received))

    return salt


def learners(chosen, folder, *, without=0):
    return {s: learner(chosen, s, folder / s, without=without if s == "slake" else 0) for s in SITES}


def apart(one, other):
    return sum(float((one[key].double() - other[key].double()).square().sum()) for key in other) ** 0.5


ATTACKS = {
    "a setting of one site": (["backbone.sites={slake: {text_length: 3}}"], 0),
    "a training sample fewer": ([], 1),
}


@pytest.mark.parametrize(("overrides", "without"), ATTACKS.values(), ids=ATTACKS)
def test_the_difference_of_two_sums_is_one_sites_only_where_the_server_knows_the_randomness(
    sections, tmp_path, overrides, without
):
    def error(secret):
        """How far the difference of the sums is from that of slake, relative to slake's own update."""
        sums, parts = [], []
        for number, (changes, fewer) in enumerate((([], 0), (overrides, without))):
            folder = tmp_path / f"{secret}-{number}"
            made = learners(sections(*CHOSEN, "training.rounds=1", *changes), folder, without=fewer)
            (result,) = federate(made, salts_of(folder) if secret else None)
            own = result.updates["slake"]
            total = sum(update.samples for update in result.updates.values())
            sums.append({key: total * tensor.double() for key, tensor in result.state.items()})
            parts.append({key: own.samples * tensor.double() for key, tensor in own.state.items()})
        found, true = ({key: two[0][key] - two[1][key] for key in two[0]} for two in (sums, parts))
        return apart(found, true) / (own.samples * apart(own.state, made["slake"].values.first))

    assert error(secret=False) < 1e-5
    assert error(secret=True) > 0.5


def test_a_resumed_round_with_the_same_secret_is_the_same_to_the_bit(sections, tmp_path):
    chosen, folder = sections(*CHOSEN), tmp_path / "kept"
    first, second = federate(learners(chosen, folder), salts_of(folder))
    again = learners(chosen, folder)
    for site, own in again.items():
        assert own.finished(1) == 1
        own.salt = salts_of(folder)(site, 2, first.state)
        update = own.train_round(2, first.state).state
        assert all(torch.equal(update[key], second.updates[site].state[key]) for key in update)
    other, _ = federate(learners(chosen, tmp_path / "other"), salts_of(tmp_path / "other"))
    for site in SITES:
        sent, start = first.updates[site].state, again[site].values.first
        assert apart(sent, other.updates[site].state) > 0.5 * apart(sent, start)

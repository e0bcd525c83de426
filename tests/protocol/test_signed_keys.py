# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The secret seed of a site: on its disk alone, the same for a lineage, and another one where a member has changed."""

import pytest
import torch

from fedpeft.core.errors import LocalError
from fedpeft.job.site_policy import SitePolicy
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol import signed_keys
from fedpeft.protocol.types import TrainOrder
from fedpeft.site.sum_member import SumMember

SITES = ("berlin", "paris", "rome")
JOB = "small-1"
RECEIVED = {"layer.0.output.down.bias": torch.zeros(2)}


def test_a_secret_is_drawn_once_for_a_lineage_and_for_its_user_alone(tmp_path):
    first, again, other = (signed_keys.secret_of(tmp_path / lineage) for lineage in ("a-1", "a-1", "a-2"))
    assert first == again != other
    assert len(first) == 32
    assert (tmp_path / "a-1" / signed_keys.SEED_FILE).stat().st_mode & 0o077 == 0


def test_a_secret_that_is_cut_off_is_one_sentence(tmp_path):
    (tmp_path / signed_keys.SEED_FILE).write_bytes(b"short")
    with pytest.raises(LocalError, match="has 5 bytes, not 32: remove that file"):
        signed_keys.secret_of(tmp_path)


class Lineage:
    """The members of a sum in one lineage; what they keep is in a folder each."""

    def __init__(self, folder):
        self.folder = folder
        self.facts = {site: {"own": 0, "data": {"examples": site}} for site in SITES}
        self.policies = dict.fromkeys(SITES, SitePolicy(sum_with=SITES))

    def salts(self, *, lineage=JOB, round=1, received=RECEIVED, members=SITES):
        """The salts of a round, by site; no certificates are looked at."""
        made = {
            site: SumMember(
                site=site,
                method=MethodSettings(aggregation="fedavg", secure_sum=True),
                settings="same",
                members=members,
                policy={"exclude": list(self.policies[site].exclude)},
            )
            for site in SITES
        }
        folders = {site: self.folder / site / lineage for site in SITES}
        keys = {
            site: member.offer(folders[site], job=lineage, round=round, facts=self.facts[site])
            for site, member in made.items()
        }
        order = TrainOrder(
            lineage=lineage, round=round, base=0, version=0, layers=None, scored=False, sum_keys=keys, state={}
        )
        return {site: member.salt(folders[site], order, received=received) for site, member in made.items()}


@pytest.fixture
def lineage(tmp_path):
    return Lineage(tmp_path)


def test_a_resumed_job_draws_the_same_again_and_another_job_does_not(lineage):
    first = lineage.salts()
    assert len({*first.values()}) == len(SITES)
    assert lineage.salts() == first, "whatever one-time keys there are"
    for other in (lineage.salts(lineage="small-2"), lineage.salts(round=2)):
        assert not {*other.values()} & {*first.values()}


CHANGES = {
    "other data": lambda lineage: lineage.facts["rome"].update(data={"examples": "one fewer"}),
    "no state of its own": lambda lineage: lineage.facts["rome"].update(own=-1),
    "another file": lambda lineage: lineage.policies.update(rome=SitePolicy(sum_with=SITES, exclude=("7",))),
    "a folder that was removed": lambda lineage: (lineage.folder / "rome" / JOB / signed_keys.SEED_FILE).unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_where_one_member_has_changed_all_draw_anew(lineage, change):
    """A lead that resumes a lineage would otherwise read the change off the difference of the two sums."""
    first = lineage.salts()
    change(lineage)
    second = lineage.salts()
    assert all(first[site] != second[site] for site in SITES)


def test_another_global_adapter_draws_anew(lineage):
    """A server could repeat a round with one to which only a single site's data react."""
    other = {key: tensor + 1 for key, tensor in RECEIVED.items()}
    first, second = lineage.salts(), lineage.salts(received=other)
    assert all(first[site] != second[site] for site in SITES)


def test_the_simulator_has_no_secrets_so_that_a_seed_gives_the_same_bytes(lineage):
    assert {*lineage.salts(members=None).values()} == {""}
    assert not list(lineage.folder.glob(f"*/*/{signed_keys.SEED_FILE}"))

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One site that holds the data of others is centralized training through the same code."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.data import Example, SiteData
from fedpeft.data.partition import ANOTHERS, centralized
from fedpeft.federate import federate
from fedpeft.job.folder import read_job_data
from fedpeft.site.learner import Learner

CONFIGS = Path(__file__).parents[2] / "app_configs"
ALL = ["slake", "vqa-rad"]
POOL = ("federation.sites=[center]", f"data.pool=[{', '.join(ALL)}]", "method.aggregation=fedavg")


@pytest.mark.slow
def test_a_pooled_site_holds_what_the_sites_hold(sections, tmp_path):
    one = Learner.from_sections(sections(*POOL), site="center", folder=tmp_path / "one")
    own = [Learner.from_sections(sections(), site=site, folder=tmp_path / site) for site in ALL]
    for split, examples in one.data.splits().items():
        assert list(examples) == [example for learner in own for example in learner.data.splits()[split]]
    assert set(one.vocabulary.answers) == {answer for learner in own for answer in learner.vocabulary.answers}


def test_a_pooled_site_adds_up_what_its_parts_left_out():
    one = Example(image=np.zeros((1, 1, 3), np.uint8), question="q", answer="a", closed=False, image_id="i")
    left_out = (("no answer", 2), ("no image", 1), (ANOTHERS, 2))  # of the pool
    north = SiteData("north", (one,), (), (one,), "s", left_out=left_out, notes=("late",))
    south = SiteData("south", (one,), (), (one,), "s", left_out=(("no answer", 3),), notes=("late",))
    both = centralized("center", [north, south])
    assert both.left_out == (("no answer", 5), ("no image", 1))
    assert both.notes == ("late",)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["private", "federated"])
def test_the_average_of_one_site_is_its_own_adapter_to_the_bit(sections, tmp_path, head):
    chosen = sections(*POOL, f"method.head={head}")
    learner = Learner.from_sections(chosen, site="center", folder=tmp_path)
    for result in federate({"center": learner}):
        (update,) = result.updates.values()
        assert all(torch.equal(update.state[key], tensor) for key, tensor in result.state.items())


def test_data_of_single_sites_go_into_the_pool(sections, tmp_path):
    chosen = sections(*POOL, "data.sites={slake: {train_size: 4}}")
    one = Learner.from_sections(chosen, site="center", folder=tmp_path)
    assert len(one.data.train) == 4 + chosen["data"]["train_size"]
    with pytest.raises(FedpeftError, match="pool"):
        sections("data.pool=[slake, slake]")
    with pytest.raises(FedpeftError, match=r"data.sites names 'slake', which is not in federation.sites"):
        sections("federation.sites=[center]", "data.sites={slake: {train_size: 4}}")


def test_names_that_sites_give_their_images_stay_apart():
    one = Example(image=np.zeros((1, 1, 3), np.uint8), question="q", answer="a", closed=False, image_id="0.png")
    parts = [SiteData(site, (replace(one, group="p"),), (), (one,), "s", own_ids=True) for site in ("north", "south")]
    both = centralized("center", parts)
    assert [(one.image_id, one.group) for one in both.train] == [("north/0.png", "north/p"), ("south/0.png", "south/p")]
    assert [one.group for one in both.test] == ["", ""]


def test_settings_of_a_pooled_site_beside_the_pool_are_refused_because_nothing_follows_them(sections):
    with pytest.raises(FedpeftError, match=r"data.sites.center sets train_share beside pool.*set it for these"):
        sections(*POOL, "data.sites.center.train_share=0.5")


@pytest.mark.slow
def test_the_table_of_a_jobs_data_counts_the_pool(sections):
    (loaded,) = read_job_data(CONFIGS, "fedpia_task1", [*POOL, "data.train_size=5"], only=None)
    assert len(loaded[1].train) == 5 * len(ALL)

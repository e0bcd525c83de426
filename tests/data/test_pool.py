# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One site that holds the data of others is centralized training through the same code."""

import numpy as np
import pytest
import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.data import Example, SiteData
from fedpeft.data.partition import centralized
from fedpeft.federate import federate
from fedpeft.site.learner import Learner

ALL = ["slake", "vqa-rad"]
POOL = ("federation.sites=[center]", f"data.pool=[{', '.join(ALL)}]", "method.aggregation=fedavg")


def test_a_pooled_site_holds_what_the_sites_hold(sections, tmp_path):
    one = Learner.from_sections(sections(*POOL), site="center", folder=tmp_path / "one")
    own = [Learner.from_sections(sections(), site=site, folder=tmp_path / site) for site in ALL]
    for split, examples in one.data.splits().items():
        assert list(examples) == [example for learner in own for example in learner.data.splits()[split]]
    assert set(one.vocabulary.answers) == {answer for learner in own for answer in learner.vocabulary.answers}


def test_a_pooled_site_adds_up_what_its_parts_left_out():
    one = Example(image=np.zeros((1, 1, 3), np.uint8), question="q", answer="a", closed=False, image_id="i")
    north = SiteData("north", (one,), (), (one,), "s", left_out=(("no answer", 2), ("no image", 1)), notes=("late",))
    south = SiteData("south", (one,), (), (one,), "s", left_out=(("no answer", 3),), notes=("late",))
    both = centralized("center", [north, south])
    assert both.left_out == (("no answer", 5), ("no image", 1))
    assert both.notes == ("late",)


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

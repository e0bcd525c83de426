# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Stochastic block attention: one drawn block a round is trained and sent by all sites, and nobody scores layers."""

import pytest
import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import layer_of
from fedpeft.federate import federate
from fedpeft.job.composing import check_sections
from fedpeft.site.learner import Learner

pytestmark = pytest.mark.slow

SITES = ("slake", "vqa-rad")


@pytest.mark.parametrize(("name", "always"), [("sba", set()), ("sba_vpt", {"shared.tokens"})])
def test_the_drawn_block_and_the_prompts_of_all_blocks_are_sent(sections, tmp_path, monkeypatch, name, always):
    monkeypatch.setattr(Learner, "score_layers", None)
    chosen = sections(f"method.name={name}", "training.rounds=6")
    learners = {site: Learner.from_sections(chosen, site=site, folder=tmp_path / site) for site in SITES}
    before, drawn = learners["slake"].trainable.state(), []
    for result in federate(learners):
        (layers,) = {tuple(own) for own in result.assignment.layers.values()}
        (block,) = layers
        drawn.append(block)
        sent = {key for key in before if layer_of(key) == block} | always
        assert all(update.state.keys() == sent for update in result.updates.values())
        changed = {key for key, tensor in before.items() if not torch.equal(tensor, result.state[key])}
        assert {key for key in sent if not key.endswith("key.bias")} <= changed <= sent  # attention ignores key biases
        before = result.state
    assert set(drawn) == {0, 1}


@pytest.mark.parametrize("override", ["schedule.solver=nsga2", "schedule.budget=2", "schedule.site_budgets={slake: 2}"])
def test_a_job_cannot_set_what_the_method_sets(sections, override):
    with pytest.raises(FedpeftError, match=r"but attention of a drawn layer is trained by .*: leave that out"):
        sections("method.name=sba", override)


def test_any_method_can_train_drawn_layers(sections):
    check_sections(sections("schedule.solver=drawn", "schedule.budget=1"))

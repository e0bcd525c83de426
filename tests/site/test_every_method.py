# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every method by its name alone, as `--set method.name=X` composes it: a round of two sites, and its figures."""

import math

import pytest
import torch

from fedpeft import methods
from fedpeft.core.keys import belongs, is_key, layers_of
from fedpeft.federate import federate
from fedpeft.protocol.types import Introduction
from fedpeft.server import first_adapter
from fedpeft.site.learner import Learner

SITES = ("slake", "vqa-rad")
SMALL = (
    f"federation.sites=[{', '.join(SITES)}]",
    "training.rounds=1",
    "training.local_epochs=1",
    "data.train_size=4",
    "data.validation_size=2",
    "data.test_size=2",
)
SETTINGS = {"fourierft": ["method.settings.fourierft.n_frequency=64"]}  # of matrices of 16 by 16


def check_start(learner, state):
    """The server's check of what all sites start from, where no majority says what that is."""
    announced = Introduction(version="1", schema={key: list(tensor.shape) for key, tensor in state.items()})
    sender = first_adapter.Sender(learner.site, "", {})
    first_adapter.check(state, sender, announced, learner.method, answering="classification")


@pytest.mark.slow
@pytest.mark.parametrize("name", methods.names())
def test_a_federation_of_any_method_ends_with_its_figures(name, sections, tmp_path):
    chosen = sections(*SMALL, f"method.name={name}", *SETTINGS.get(name, ()))
    learners = {site: Learner.from_sections(chosen, site=site, folder=tmp_path / site) for site in SITES}
    first = learners[SITES[0]].first_state()
    check_start(learners[SITES[0]], first)
    (result,) = federate(learners)
    assert result.updates.keys() == set(SITES)
    assert not result.refused
    for update in result.updates.values():
        assert math.isfinite(update.metrics["loss"])
        assert 0 <= update.metrics["overall"] <= 1
    assert bool(result.state) == methods.get(name).exchanges
    assert all(map(is_key, result.state))
    sent = [update.state.keys() for update in result.updates.values()]
    assert sent[0] == sent[1]
    drawn = [[layer] for layer in layers_of(first)] if methods.get(name).schedule else [None]  # one of these, or all
    assert set(sent[0]) in [{key for key in first if belongs(key, layers)} for layers in drawn]
    assert result.state.keys() <= first.keys()
    assert not result.state or any(not torch.equal(tensor, first[key]) for key, tensor in result.state.items())

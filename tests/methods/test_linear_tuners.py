# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Of tuners whose update is linear in their tensors, the mean of the tensors is the mean of the updates."""

import pytest
import torch
from torch import nn

from fedpeft import methods
from fedpeft.core.errors import FedpeftError

SETTINGS = {"fourierft": {"n_frequency": 40}, "miss": {"r": 5}}  # of 32 inputs: the last block of five is not full


def prepared(name, vilt, **settings):
    backbone = nn.Module()
    backbone.model = vilt()
    return backbone, methods.get(name).tuning().prepare(backbone, {**SETTINGS[name], **settings}, seed=0)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_mean_of_the_tensors_is_the_mean_of_the_updates(name, vilt):
    backbone, trainable = prepared(name, vilt)
    projection = next(m for path, m in backbone.named_modules() if path.endswith("layer.1.attention.attention.query"))
    inputs = torch.randn(7, 32, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    first = trainable.state()
    assert all(not tensor.any() for tensor in first.values()), "it starts without a change of the function"
    states = [{key: torch.randn(t.shape, generator=generator) for key, t in first.items()} for _ in range(3)]

    def update(state):
        trainable.load(state)
        with torch.no_grad():
            return projection(inputs) - projection.base_layer(inputs)

    mean = {key: sum(state[key] for state in states) / 3 for key in first}
    expected = sum(update(state) for state in states) / 3
    assert expected.abs().max() > 0.1
    assert torch.allclose(update(mean), expected, atol=1e-5)


def test_null_stands_for_the_default():
    config = methods.get("fourierft").tuning().config
    assert config({"random_loc_seed": None}).random_loc_seed == config({}).random_loc_seed == 777
    assert config({"n_frequency_pattern": None}).n_frequency_pattern == {}
    assert methods.get("miss").tuning().config({"r": None}).r == 8
    with pytest.raises(FedpeftError, match=r"adapter 'fourierft' has random_loc_seed=-1, it must be at least 0\.$"):
        config({"random_loc_seed": -1})

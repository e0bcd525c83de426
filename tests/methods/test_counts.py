# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The trainable counts of SPEC section 1 on a full-size ViLT-B/32, from the model and from the schema."""

import math

import pytest
import torch
from peft import get_peft_model
from transformers import ViltConfig, ViltModel

from fedpeft import adapters
from fedpeft.methods.adapters import adapter_parameters

COUNTS = [
    ("houlsby", {}, 1_789_056),
    ("pfeiffer", {}, 894_528),
    ("pfeiffer", {"layer_norm": True}, 912_960),
    ("parallel", {}, 7_091_712),
    ("compacter", {}, 57_088),
    ("lora", {}, 147_456),  # 12 layers, query and value, r = 4: 12 * 2 * 2 * 4 * 768
]


@pytest.mark.parametrize(("name", "settings", "expected"), COUNTS, ids=lambda value: str(value))
def test_trainable_parameters_of_vilt_b(name, settings, expected):
    config = adapters.config(name, **settings)
    with torch.device("meta"):
        model = get_peft_model(ViltModel(ViltConfig()), config)
    assert model.get_nb_trainable_parameters()[0] == expected
    shapes = adapters.schema(config, "vilt", 12, 768)
    assert sum(math.prod(shape) for shape in shapes.values()) == expected
    parameters = adapter_parameters(model)
    assert [(key, tuple(p.shape)) for key, p in parameters.items()] == list(shapes.items())


def test_four_pfeiffer_layers_are_9_54_megabit():
    # SPEC section 4: what a client of F3OCUS sends with 4 of 12 layers
    for layer_norm, megabit in ((False, 9.54), (True, 9.74)):
        config = adapters.config("pfeiffer", layers=[0, 3, 7, 11], layer_norm=layer_norm)
        shapes = adapters.schema(config, "vilt", 12, 768)
        assert round(sum(math.prod(shape) for shape in shapes.values()) * 32 / 1e6, 2) == megabit

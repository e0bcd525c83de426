# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Adapters on models that are not in the table, and on part of a model's layers."""

import pytest
import torch
from peft import get_peft_model
from torch import nn
from transformers import ViltForQuestionAnswering

from fedpeft import adapters
from fedpeft.core.errors import FedpeftError


class Block(nn.Module):
    """A block that returns a tuple, as many transformers attention modules do."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, 3 * width)
        self.outer = nn.Linear(3 * width, width)

    def forward(self, x, scale=1.0):
        return x + scale * self.outer(self.inner(x).relu()), "weights"


class Tower(nn.Module):
    def __init__(self, width=8, depth=3):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x, note = block(x)
            assert note == "weights"
        return x


class Plain(nn.Module):
    """Blocks without any linear layer; the width stands in the model's configuration."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.steps = nn.ModuleList([nn.Dropout(0.0), nn.Dropout(0.0)])

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x


TARGET = {"output": "blocks.{layer}"}


@pytest.mark.parametrize("name", ["houlsby", "pfeiffer", "parallel", "compacter"])
@pytest.mark.filterwarnings("ignore:.*target_modules names")
def test_any_model_whose_target_modules_are_named(name, draw):
    config = adapters.config(name, target_modules=TARGET, reduction_factor=2)
    model = get_peft_model(Tower(), config)
    state = draw(adapters.schema(config, None, 3, 8))
    adapters.load_adapter_state(model, state)
    x = torch.randn(2, 5, 8)
    expected = x
    for i, block in enumerate(Tower().blocks):
        layer = model.base_model.model.blocks[i]
        h = block(expected)[0]
        branch = layer.adapters["default"](expected if name == "parallel" else h)
        expected = h + (4.0 if name == "parallel" else 1.0) * branch
    torch.testing.assert_close(model(x), expected)


class Gated(Block):
    """A block with a gate of one output behind its last linear layer, as that of an expert that all tokens share."""

    def __init__(self, width):
        super().__init__(width)
        self.gate = nn.Linear(width, 1)


def test_the_width_of_a_block_is_not_that_of_its_gate():
    model = nn.Module()
    model.blocks = nn.ModuleList(Gated(8) for _ in range(2))
    state = adapters.adapter_state(
        adapters.attach(model, adapters.config("pfeiffer", target_modules=TARGET, reduction_factor=4))
    )
    assert state["layer.1.output.down.weight"].shape == (2, 8)


def test_the_width_may_come_from_the_models_configuration():
    config = adapters.config("pfeiffer", target_modules={"output": "steps.{layer}"}, reduction_factor=4)
    model = get_peft_model(Plain({"hidden_size": 8}), config)
    assert adapters.adapter_state(model)["layer.1.output.down.weight"].shape == (2, 8)
    with pytest.raises(FedpeftError, match=r"the hidden width of steps.0 is unknown"):
        get_peft_model(Plain({}), config)


def test_layers_and_widths_of_their_own():
    config = adapters.config(
        "pfeiffer", target_modules=TARGET, layers=[2, 0], layer_widths={0: 3}, reduction_factor=4, activation="relu"
    )
    model = get_peft_model(Tower(), config)
    state = adapters.adapter_state(model)
    assert {key.rsplit(".", 2)[0] for key in state} == {"layer.0.output", "layer.2.output"}
    assert state["layer.0.output.down.weight"].shape == (3, 8)
    assert state["layer.2.output.down.weight"].shape == (2, 8)
    assert {key: tuple(tensor.shape) for key, tensor in state.items()} == adapters.schema(config, None, 3, 8)


def test_two_adapters_on_different_layers(draw):
    model = get_peft_model(Tower(), adapters.config("pfeiffer", target_modules=TARGET, layers=[0], reduction_factor=2))
    model.add_adapter("late", adapters.config("pfeiffer", target_modules=TARGET, layers=[2], reduction_factor=2))
    model.base_model.set_adapter(["default", "late"])
    for name in ("default", "late"):
        adapters.load_adapter_state(model, {k: v + 0.5 for k, v in adapters.adapter_state(model, name).items()}, name)
    x = torch.randn(2, 5, 8)
    blocks = model.base_model.model.blocks
    expected = x
    for i, block in enumerate(Tower().blocks):
        expected = block(expected)[0]
        if i != 1:  # each place averages over the adapters it has: one
            expected = expected + blocks[i].adapters["default" if i == 0 else "late"](expected)
    torch.testing.assert_close(model(x), expected)


def test_a_model_around_the_familys_encoder_is_the_same_family(vilt, draw, tmp_path):
    config = adapters.config("houlsby")
    question_answering = ViltForQuestionAnswering(vilt().config).eval()
    question_answering.vilt.load_state_dict(vilt().state_dict())
    around = get_peft_model(question_answering, config)
    bare = get_peft_model(vilt(), adapters.config("houlsby"))
    state = draw(adapters.schema(config, "vilt", 2, 32))
    assert list(adapters.adapter_state(around)) == list(adapters.adapter_state(bare)) == list(state)
    adapters.load_adapter_state(around, state)
    around.save_pretrained(tmp_path)
    # saved with one parent path, loaded below another
    loaded = adapters.load_adapter(vilt(), tmp_path)
    assert all(torch.equal(tensor, state[key]) for key, tensor in adapters.adapter_state(loaded).items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_modules": {"output": "blocks.{layer}.missing"}}, r"matches no module of Tower"),
        ({"target_modules": TARGET, "layers": [1, 3]}, r"layers names layer 3, but Tower has layers 0 to 2"),
        (
            {"target_modules": TARGET, "layer_widths": {7: 2}},
            r"layer_widths names layer 7, but Tower has layers 0 to 2",
        ),
        ({"target_modules": TARGET, "reduction_factor": 9}, r"reduction_factor=9 leaves no neuron of hidden width 8"),
        ({}, r"the layers of model family .* are not known"),
    ],
)
def test_places_that_do_not_exist_are_refused_and_nothing_is_replaced(settings, message):
    tower = Tower()
    before = [name for name, _ in tower.named_modules()]
    with pytest.raises(FedpeftError, match=message):
        get_peft_model(tower, adapters.config("houlsby", **settings))
    assert [name for name, _ in tower.named_modules()] == before


def test_two_towers_under_one_template_are_refused():
    with pytest.raises(FedpeftError, match=r"under several parents \('a\.', 'b\.'\)"):
        get_peft_model(nn.ModuleDict({"a": Tower(), "b": Tower()}), adapters.config("pfeiffer", target_modules=TARGET))
    towers = {"first": "a.blocks.{layer}", "second": "b.blocks.{layer}"}
    model = get_peft_model(
        nn.ModuleDict({"a": Tower(), "b": Tower()}),
        adapters.config("pfeiffer", target_modules=towers, reduction_factor=4),
    )
    assert len({key.split(".down")[0] for key in adapters.adapter_state(model) if "down.weight" in key}) == 6


def test_one_place_has_one_role():
    model = get_peft_model(Tower(), adapters.config("pfeiffer", target_modules=TARGET, reduction_factor=4))
    other = adapters.config("pfeiffer", target_modules={"behind": "blocks.{layer}"}, reduction_factor=4)
    with pytest.raises(FedpeftError, match=r"calls blocks.0 'behind', but another adapter .* calls it 'output'"):
        model.add_adapter("other", other)

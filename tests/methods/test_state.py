# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The wire form: out of a model, into a model, trainable layers, and values that depend on the seed alone."""

import pytest
import torch
from peft import LoHaConfig, get_peft_model

from fedpeft import adapters, methods
from fedpeft.core.errors import FedpeftError

METHODS = [
    ("houlsby", {}),
    ("pfeiffer", {"layer_norm": True}),
    ("parallel", {}),
    ("compacter", {"reduction_factor": 8}),
    ("lora", {}),
    ("lora", {"layers_to_transform": [1], "rank_pattern": {"query": 2}}),
]
every_method = pytest.mark.parametrize(("name", "settings"), METHODS)


@every_method
def test_a_state_goes_in_and_comes_out(name, settings, vilt, draw):
    config = adapters.config(name, **settings)
    model = get_peft_model(vilt(), config)
    shapes = adapters.schema(config, "vilt", 2, 32)
    state = draw(shapes)
    adapters.load_adapter_state(model, state)
    got = adapters.adapter_state(model)
    assert list(got) == list(shapes)
    for key, tensor in got.items():
        assert torch.equal(tensor, state[key])
        assert not tensor.requires_grad
        assert tensor.is_contiguous()
    for tensor in got.values():
        tensor.fill_(9.0)  # copies, not the model's memory
    assert all(torch.equal(tensor, state[key]) for key, tensor in adapters.adapter_state(model).items())


@every_method
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state, key: state.pop(key), "the adapter state lacks '{key}'"),
        (
            lambda state, key: state.update({"layer.7.output.down.weight": state[key]}),
            "has 'layer.7.output.down.weight'",
        ),
        (lambda state, key: state.update({key: state[key][..., None]}), "'{key}' in the adapter state has shape"),
        (
            lambda state, key: state.update({key: state[key].int()}),
            "'{key}' in the adapter state is Tensor, not",
        ),
        (lambda state, key: state.update({key: None}), "'{key}' in the adapter state is NoneType, not"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_whole(name, settings, change, message, vilt, draw):
    model = get_peft_model(vilt(), adapters.config(name, **settings))
    before = adapters.adapter_state(model)
    state = draw({key: tuple(tensor.shape) for key, tensor in before.items()})
    key = list(state)[-1]
    change(state, key)
    with pytest.raises(FedpeftError) as caught:
        adapters.load_adapter_state(model, state)
    assert message.format(key=key) in str(caught.value)
    assert all(torch.equal(tensor, before[key]) for key, tensor in adapters.adapter_state(model).items())


def test_models_without_that_adapter(vilt):
    with pytest.raises(FedpeftError, match=r"ViltModel has no adapter: make one with peft\.get_peft_model"):
        adapters.adapter_state(vilt())
    with pytest.raises(FedpeftError, match=r"adapter 'global' is not in the model \(it has: default\)"):
        adapters.adapter_state(get_peft_model(vilt(), adapters.config("houlsby")), "global")
    other = LoHaConfig(target_modules=["value"])
    with pytest.raises(FedpeftError, match="LoHaConfig is of no method of fedpeft"):
        adapters.adapter_state(get_peft_model(vilt(), other))


@every_method
def test_exactly_the_chosen_layers_of_one_adapter_train(name, settings, vilt):
    model = get_peft_model(vilt(), adapters.config(name, **settings))
    model.add_adapter("global", adapters.config(name, **settings))
    model.base_model.set_adapter(["default", "global"])
    for adapter_name in ("default", "global"):
        adapters.set_trainable_layers(model, [1], adapter_name)
        trainable = [key for key, parameter in model.named_parameters() if parameter.requires_grad]
        assert trainable
        for key in trainable:
            assert f".{adapter_name}." in key
            assert ".layer.1." in key or "compacter_shared" in key
    adapters.set_trainable_layers(model)
    count = sum(tensor.numel() for tensor in adapters.adapter_state(model).values())
    assert model.get_nb_trainable_parameters()[0] == count
    adapters.set_trainable_layers(model, [])
    assert model.get_nb_trainable_parameters()[0] == 0
    with pytest.raises(FedpeftError, match="layer 2 has no adapter 'default'"):
        adapters.set_trainable_layers(model, [1, 2])
    with pytest.raises(FedpeftError, match="layers is a mask"):
        adapters.set_trainable_layers(model, [False, True])


SEEDED = [method for method in METHODS if method[0] != "lora"]


@pytest.mark.parametrize(("name", "settings"), SEEDED)
def test_same_seed_same_bytes_whatever_was_drawn_before(name, settings, vilt):
    torch.manual_seed(1)
    first = adapters.adapter_state(get_peft_model(vilt(), adapters.config(name, **settings, init_seed=4)))
    torch.manual_seed(2)
    torch.randn(7)
    after = torch.get_rng_state()
    backbone = vilt()
    model = get_peft_model(backbone, adapters.config(name, **settings, init_seed=4), adapter_name="other")
    assert torch.equal(torch.get_rng_state(), after)  # and nothing is drawn from the global generator
    second = adapters.adapter_state(model, "other")
    assert all(torch.equal(first[key], second[key]) for key in first)
    third = adapters.adapter_state(get_peft_model(vilt(), adapters.config(name, **settings, init_seed=5)))
    constant = ("bias", "norm.weight", *(("up.weight",) if name == "parallel" else ()))
    for key in first:
        assert torch.equal(first[key], third[key]) == key.endswith(constant)


@pytest.mark.parametrize(("name", "settings"), SEEDED)
def test_a_layers_values_do_not_depend_on_the_other_layers(name, settings, vilt):
    every = adapters.adapter_state(get_peft_model(vilt(), adapters.config(name, **settings)))
    last = adapters.adapter_state(get_peft_model(vilt(), adapters.config(name, **settings, layers=[1])))
    assert set(last) == {key for key in every if not key.startswith("layer.0.")}
    assert all(torch.equal(every[key], tensor) for key, tensor in last.items())


@pytest.mark.parametrize(("name", "settings"), SEEDED)
def test_the_server_draws_the_same_values_without_a_model(name, settings, vilt):
    config = adapters.config(name, **settings, init_seed=11)
    state = adapters.initial_state(config, "vilt", 2, 32)
    model = adapters.adapter_state(get_peft_model(vilt(), config))
    assert list(state) == list(model)
    assert all(torch.equal(state[key], model[key]) for key in state)


def test_lora_has_no_seeded_values():
    with pytest.raises(FedpeftError, match="LoraConfig has no seeded initial values"):
        adapters.initial_state(adapters.config("lora"), "vilt", 2, 32)


def test_initial_values_have_the_stated_distribution():
    state = adapters.initial_state(adapters.config("houlsby"), "vilt", 2, 768)
    weights = torch.cat([tensor.flatten() for key, tensor in state.items() if key.endswith("weight")])
    assert abs(weights.mean()) < 1e-3
    assert abs(weights.std() - 0.02) < 1e-3
    assert all(not tensor.any() for key, tensor in state.items() if key.endswith("bias"))
    state = adapters.initial_state(adapters.config("compacter", rule_std=0.5), "vilt", 40, 768)
    bound = (6 / (192 + 1)) ** 0.5
    left = torch.stack([state[f"layer.{layer}.output.down.left"] for layer in range(40)])
    assert left.abs().max() <= bound
    assert abs(left.std() - bound / 3**0.5) < 5e-3
    assert 0.3 < state["shared.rule"].std() < 0.7


@pytest.mark.parametrize("name", ["houlsby", "pfeiffer", "parallel", "compacter"])
def test_the_settings_of_a_state_have_the_width_of_each_layer_that_has_one(name, draw):
    shapes = adapters.schema(adapters.config(name, reduction_factor=8, layer_widths={1: 8}), "vilt", 2, 32)
    tuning, state = methods.get(name).tuning(), draw(shapes)
    assert tuning.state_settings(state, {}) == {"layer_widths": {0: 4, 1: 8}}
    narrow = draw(adapters.schema(adapters.config(name, reduction_factor=8), "vilt", 2, 32))
    tower = {key.replace(".output.", ".vision_output."): tensor for key, tensor in narrow.items() if ".output." in key}
    assert tuning.state_settings(state | tower, {}) == {"layer_widths": {0: 4}}  # two towers have a layer 1

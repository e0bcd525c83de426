# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every door of PEFT through which a user comes: save, load, add, activate, switch off, delete, unload, merge."""

import copy

import pytest
import torch
from peft import PeftModel, get_peft_model

from fedpeft import adapters
from fedpeft.core.errors import FedpeftError

METHODS = [
    ("houlsby", {}),
    ("pfeiffer", {"layer_norm": True}),
    ("parallel", {}),
    ("compacter", {"reduction_factor": 8}),
]
every_method = pytest.mark.parametrize(("name", "settings"), METHODS)


@pytest.fixture
def adapted(vilt, draw):
    """A tiny ViLT with a trained-looking adapter."""

    def build(name, settings):
        model = get_peft_model(vilt(), adapters.config(name, **settings)).eval()
        adapters.load_adapter_state(model, draw(adapters.schema(model.peft_config["default"], "vilt", 2, 32)))
        return model

    return build


@every_method
@pytest.mark.parametrize("low_cpu_mem_usage", [False, True])
def test_saved_and_loaded_is_the_same_function(
    name, settings, low_cpu_mem_usage, adapted, vilt, run, tmp_path, recwarn
):
    model = adapted(name, settings)
    model.save_pretrained(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    loaded = PeftModel.from_pretrained(vilt(), tmp_path, low_cpu_mem_usage=low_cpu_mem_usage)
    assert torch.equal(run(loaded), run(model))
    assert not torch.allclose(run(loaded), run(vilt()))
    assert not [w for w in recwarn if "missing adapter keys" in str(w.message)]
    assert not any(p.requires_grad for p in loaded.parameters())
    trainable = PeftModel.from_pretrained(vilt(), tmp_path, is_trainable=True)
    assert trainable.get_nb_trainable_parameters()[0] == model.get_nb_trainable_parameters()[0]


@every_method
def test_second_adapter_comes_and_goes(name, settings, adapted, run):
    model = adapted(name, settings)
    alone = run(model)
    before = {n for n, p in model.named_parameters() if p.requires_grad}
    model.add_adapter("global", adapters.config(name, **settings, init_seed=5))
    assert torch.equal(run(model), alone)  # not active yet
    assert {n for n, p in model.named_parameters() if p.requires_grad} == before
    model.set_adapter("global")
    assert not torch.equal(run(model), alone)
    assert {n.replace(".global", ".default") for n, p in model.named_parameters() if p.requires_grad} == before
    model.base_model.set_adapter(["default", "global"])
    together = run(model)
    assert not torch.equal(together, alone)
    model.delete_adapter("global")
    assert torch.equal(run(model), alone)
    assert {n for n, p in model.named_parameters() if p.requires_grad} == before
    with pytest.raises(FedpeftError, match=r"adapter 'global' is not in the model \(it has: default\)"):
        model.base_model.set_adapter(["default", "global"])


@every_method
def test_a_batch_of_several_adapters_is_refused(name, settings, adapted, run):
    model = adapted(name, settings)
    with pytest.raises(FedpeftError, match="has no mixed batches: leave adapter_names out"):
        model(input_ids=torch.ones(2, 3, dtype=torch.long), adapter_names=["default", "default"])
    assert torch.isfinite(run(model)).all()


@every_method
def test_the_same_adapter_twice_is_the_adapter(name, settings, adapted, run):
    model = adapted(name, settings)
    alone = run(model)
    model.add_adapter("global", adapters.config(name, **settings))
    adapters.load_adapter_state(model, adapters.adapter_state(model), "global")
    model.base_model.set_adapter(["default", "global"])
    torch.testing.assert_close(run(model), alone)


@every_method
def test_disabled_the_model_is_the_backbone_and_what_was_frozen_stays_frozen(name, settings, adapted, vilt, run):
    model = adapted(name, settings)
    adapters.set_trainable_layers(model, [1])
    before = {n for n, p in model.named_parameters() if p.requires_grad}
    with model.disable_adapter():
        assert torch.equal(run(model), run(vilt()))
    assert not torch.equal(run(model), run(vilt()))
    assert {n for n, p in model.named_parameters() if p.requires_grad} == before


@every_method
def test_unloaded_the_backbone_is_as_before(name, settings, adapted, vilt, run):
    backbone = adapted(name, settings).unload()
    fresh = vilt()
    assert [n for n, _ in backbone.named_modules()] == [n for n, _ in fresh.named_modules()]
    assert torch.equal(run(backbone), run(fresh))


@every_method
@pytest.mark.parametrize("method", ["merge_and_unload", "merge_adapter"])
def test_merging_is_refused_with_the_reason(name, settings, method, adapted):
    with pytest.raises(FedpeftError, match=r"cannot be merged .* its bottleneck is not linear: .* unload\(\)"):
        getattr(adapted(name, settings), method)()


@every_method
def test_a_copied_model_is_independent(name, settings, adapted, run):
    model = adapted(name, settings)
    before = run(model)
    twin = copy.deepcopy(model)
    assert torch.equal(run(twin), before)
    for key, tensor in adapters.adapter_state(twin).items():
        state = adapters.adapter_state(twin)
        adapters.load_adapter_state(twin, {**state, key: tensor + 1.0})
    assert not torch.equal(run(twin), before)
    assert torch.equal(run(model), before)


@every_method
def test_every_trainable_parameter_gets_a_gradient(name, settings, adapted, batch):
    model = adapted(name, settings)
    model(**batch()).last_hidden_state.square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.requires_grad == (parameter.grad is not None), key
        if parameter.requires_grad:
            assert parameter.grad.abs().sum() > 0, key


def test_compacters_rule_is_one_parameter(adapted, tmp_path):
    from safetensors import safe_open

    model = adapted("compacter", {"reduction_factor": 8})
    names = [name for name, p in model.named_parameters() if tuple(p.shape) == (4, 4, 4)]
    assert names == ["base_model.compacter_shared.default.rule"]
    assert [key for key in model.state_dict() if "rule" in key] == names
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "adapter_model.safetensors", "pt") as file:
        assert [key for key in file.keys() if "rule" in key] == ["base_model.compacter_shared.rule"]  # noqa: SIM118
    model.set_requires_grad("default", False)
    assert not any(p.requires_grad for p in model.parameters())


def test_a_head_may_be_saved_with_the_adapter(draw, tmp_path):
    def net():
        torch.manual_seed(0)
        return torch.nn.ModuleDict(
            {"blocks": torch.nn.ModuleList([torch.nn.Linear(8, 8)]), "head": torch.nn.Linear(8, 3)}
        )

    config = adapters.config(
        "pfeiffer", target_modules={"output": "blocks.{layer}"}, reduction_factor=2, modules_to_save=["head"]
    )
    model = get_peft_model(net(), config)
    with torch.no_grad():
        model.base_model.model["head"].modules_to_save["default"].weight.fill_(7.0)
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(net(), tmp_path)
    assert (loaded.base_model.model["head"].modules_to_save["default"].weight == 7.0).all()

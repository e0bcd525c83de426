# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What each adapter computes, against the formula written out, at every place of a running model."""

import pytest
import torch
from peft import get_peft_model
from torch import nn
from torch.nn import functional as F

from fedpeft import adapters, methods
from fedpeft.core.errors import FedpeftError
from fedpeft.methods.bottleneck.layer import BottleneckLayer

METHODS = [
    ("houlsby", {}),
    ("pfeiffer", {}),
    ("pfeiffer", {"layer_norm": True}),
    ("parallel", {}),
    ("compacter", {"reduction_factor": 4, "rank": 2}),
]


def kronecker_matrix(rule, left, right):
    return sum(torch.kron(rule[i], left[i] @ right[i]) for i in range(len(rule)))


def expected_branch(name, tensors, shared, h):
    """One adapter's addition to the residual stream, from its wire tensors alone."""
    if name == "compacter":
        down = kronecker_matrix(shared, tensors["down.left"], tensors["down.right"])
        up = kronecker_matrix(shared, tensors["up.left"], tensors["up.right"])
        return F.gelu(h @ down + tensors["down.bias"]) @ up + tensors["up.bias"]
    if "norm.weight" in tensors:
        h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        h = h * tensors["norm.weight"] + tensors["norm.bias"]
    hidden = h @ tensors["down.weight"].T + tensors["down.bias"]
    hidden = hidden * hidden.sigmoid() if name == "houlsby" else hidden.clamp(min=0)
    return (4.0 if name == "parallel" else 1.0) * (hidden @ tensors["up.weight"].T + tensors["up.bias"])


def place_tensors(state, place):
    return {key.removeprefix(f"{place}."): tensor for key, tensor in state.items() if key.startswith(f"{place}.")}


def watch(model):
    """Record, in each place, what the wrapped module got and gave and what the layer gave."""
    seen = {}
    for layer in model.modules():
        if isinstance(layer, BottleneckLayer):
            layer.base_layer.register_forward_hook(
                lambda _, args, out, place=layer.place: seen.setdefault(place, {}).update(args=args, base=out)
            )
            layer.register_forward_hook(lambda layer, _, out: seen[layer.place].update(out=out))
    return seen


@pytest.mark.parametrize(("name", "settings"), METHODS)
@pytest.mark.parametrize("names", [["default"], ["default", "global"]])
def test_output_is_the_modules_plus_the_mean_of_the_active_adapters(name, settings, names, vilt, run, draw):
    model = get_peft_model(vilt(), adapters.config(name, **settings))
    other = adapters.config(name, **{**settings, "reduction_factor": 8})  # of another width
    model.add_adapter("global", other)
    model.base_model.set_adapter(names)
    states = {
        "default": draw(adapters.schema(model.peft_config["default"], "vilt", 2, 32), seed=1),
        "global": draw(adapters.schema(other, "vilt", 2, 32), seed=2),
    }
    for adapter_name, state in states.items():
        adapters.load_adapter_state(model, state, adapter_name)
    seen = watch(model)
    run(model)
    roles = ("attention", "output") if name in ("houlsby", "compacter") else ("output",)
    assert sorted(seen) == sorted(f"layer.{layer}.{role}" for layer in range(2) for role in roles)
    for place, values in seen.items():
        h = values["args"][1] if name == "parallel" else values["base"]
        branches = [
            expected_branch(name, place_tensors(states[n], place), states[n].get("shared.rule"), h) for n in names
        ]
        torch.testing.assert_close(values["out"], values["base"] + sum(branches) / len(names))


def test_houlsby_reads_attention_before_and_feed_forward_after_its_residual_sum(vilt, run):
    model = get_peft_model(vilt(), adapters.config("houlsby"))
    layer = model.get_base_model().encoder.layer[0]
    assert type(layer.attention.output.base_layer).__name__ == "ViltSelfOutput"
    assert type(layer.output.base_layer).__name__ == "ViltOutput"


def test_a_fresh_parallel_adapter_leaves_the_model_as_it_is(vilt, run):
    assert torch.equal(run(get_peft_model(vilt(), adapters.config("parallel"))), run(vilt()))


def test_an_adapter_of_half_precision_trains_beside_one_of_single(vilt, run, draw):
    # one adapter loaded in bfloat16 cannot be fused with the other; the result stays close to the exact mean
    model = get_peft_model(vilt(), adapters.config("houlsby"))
    model.add_adapter("global", adapters.config("houlsby"))
    model.base_model.set_adapter(["default", "global"])
    for seed, name in enumerate(("default", "global")):
        adapters.load_adapter_state(model, draw(adapters.schema(adapters.config("houlsby"), "vilt", 2, 32), seed), name)
    exact = run(model)
    for layer in model.modules():
        if isinstance(layer, BottleneckLayer):
            layer.adapters["global"].to(torch.bfloat16)
    assert run(model).dtype == torch.float32
    torch.testing.assert_close(run(model), exact, atol=0.1, rtol=0.1)


def test_adapters_on_a_half_precision_backbone_are_single_and_keep_its_output_type(vilt, batch):
    for name in ("houlsby", "compacter"):
        model = get_peft_model(vilt().to(torch.bfloat16), adapters.config(name, reduction_factor=8))
        assert {p.dtype for n, p in model.named_parameters() if p.requires_grad} == {torch.float32}
        inputs = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in batch().items()}
        assert model(**inputs).last_hidden_state.dtype == torch.bfloat16


# Of tuners whose update is linear in their tensors, the mean of the tensors is the mean of the updates.


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

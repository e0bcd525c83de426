# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Hidden activations against a recomputation from recorded inputs of every place."""

import pytest
import torch
from peft import get_peft_model
from torch.nn import functional as F

from fedpeft import adapters
from fedpeft.core.errors import FedpeftError
from fedpeft.methods.bottleneck.layer import BottleneckLayer

METHODS = [
    ("houlsby", {}),
    ("pfeiffer", {"layer_norm": True}),
    ("parallel", {}),
    ("compacter", {"reduction_factor": 8}),
]
TOKENS = 9  # 5 of text, 4 of image


def recorded_inputs(model, name, batches):
    """Site -> (m, T, d), what an adapter reads there, by hooks on the wrapped modules."""
    inputs = {}
    hooks = []
    for layer in model.modules():
        if isinstance(layer, BottleneckLayer):

            def keep(_, args, out, place=layer.place):
                inputs.setdefault(place, []).append(args[1] if name == "parallel" else out)

            hooks.append(layer.base_layer.register_forward_hook(keep))
    with torch.no_grad():
        for batch in batches:
            model(**batch)
    for hook in hooks:
        hook.remove()
    return {place: torch.cat(tensors) for place, tensors in inputs.items()}


def recomputed(name, state, place, h):
    """Activations (m, T, r) of one state's neurons at one place."""
    tensors = {key.removeprefix(f"{place}."): tensor for key, tensor in state.items()}
    if name == "compacter":
        rule, left, right = state["shared.rule"], tensors["down.left"], tensors["down.right"]
        return F.gelu(h @ sum(torch.kron(rule[i], left[i] @ right[i]) for i in range(4)) + tensors["down.bias"])
    if name == "pfeiffer":
        h = F.layer_norm(h, h.shape[-1:], tensors["norm.weight"], tensors["norm.bias"])
    return (F.silu if name == "houlsby" else F.relu)(h @ tensors["down.weight"].T + tensors["down.bias"])


@pytest.mark.parametrize(("name", "settings"), METHODS)
@pytest.mark.parametrize("masked", [False, True])
def test_activations_equal_a_recomputation_from_hooks(name, settings, masked, vilt, batch, draw):
    model = get_peft_model(vilt(), adapters.config(name, **settings))
    own = adapters.schema(model.peft_config["default"], "vilt", 2, 32)
    wide = adapters.schema(adapters.config(name, **{**settings, "reduction_factor": 4}), "vilt", 2, 32)
    states = [draw(own, 1), draw(wide, 2), {k: v for k, v in draw(own, 3).items() if not k.startswith("layer.0.")}]
    adapters.load_adapter_state(model, draw(own, 4))
    batches = [batch(3, seed=1), batch(2, seed=2)]
    generator = torch.Generator().manual_seed(0)
    masks = [(torch.rand(len(b["input_ids"]), TOKENS, generator=generator) > 0.4).float() for b in batches]
    masks[0][:, 0] = masks[1][:, 0] = 1.0
    model.train()
    got = adapters.hidden_activations(model, states, iter(batches), masks=masks if masked else None)
    assert model.training
    assert model.get_base_model().encoder.layer[0].output.training
    model.eval()
    weights = torch.cat(masks) if masked else torch.ones(5, TOKENS)
    inputs = recorded_inputs(model, name, batches)
    assert set(got[0]) == set(got[1]) == set(inputs)
    assert set(got[2]) == {place for place in inputs if place.startswith("layer.1.")}
    for activations, state in zip(got, states, strict=True):
        for place, values in activations.items():
            hidden = recomputed(name, state, place, inputs[place])
            expected = (hidden * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
            assert values.dtype == torch.float32
            torch.testing.assert_close(values, expected)


def test_one_mask_may_be_missing(vilt, batch):
    model = get_peft_model(vilt(), adapters.config("houlsby"))
    state = adapters.adapter_state(model)
    batches = [batch(2, 1), batch(2, 2)]
    plain = adapters.hidden_activations(model, [state], batches)
    mixed = adapters.hidden_activations(model, [state], batches, masks=[None, torch.ones(2, TOKENS)])
    for place in plain[0]:
        torch.testing.assert_close(plain[0][place], mixed[0][place])


def test_inputs_depend_on_the_active_adapters_and_the_model_is_left_alone(vilt, batch, draw, run):
    model = get_peft_model(vilt(), adapters.config("houlsby"))
    state = draw(adapters.schema(adapters.config("houlsby"), "vilt", 2, 32))
    fresh = adapters.hidden_activations(model, [state], [batch()])
    adapters.load_adapter_state(model, state)
    before = run(model)
    trained = adapters.hidden_activations(model, [state], [batch()])
    assert torch.equal(fresh[0]["layer.0.attention"], trained[0]["layer.0.attention"])  # nothing lies before it
    assert not torch.allclose(fresh[0]["layer.1.output"], trained[0]["layer.1.output"])
    assert torch.equal(run(model), before)
    assert all(torch.equal(state[key], tensor) for key, tensor in adapters.adapter_state(model).items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda state, batch: ([state], []), "there is no batch"),
        (lambda state, batch: ([state], [batch], []), "not as many masks as batches"),
        (lambda state, batch: ([state], [batch], [None, None]), "not as many masks as batches"),
        (
            lambda state, batch: ([state], [batch], [torch.ones(3, 4)]),
            r"mask has shape \(3, 4\), but layer.0.attention",
        ),
        (lambda state, batch: ([state], [batch], [torch.ones(3)]), r"mask has shape \(3,\): it must be"),
        (lambda state, batch: ([state], [batch], [torch.eye(3, TOKENS) * 0]), "the mask of sample 0 counts no token"),
        (
            lambda state, batch: ([{"layer.5.output.up.bias": state["layer.1.output.up.bias"]}], [batch]),
            "layer.5.output",
        ),
        (
            lambda state, batch: ([{"layer.1.output.up.bias": state["layer.1.output.up.bias"]}], [batch]),
            "has up.bias and",
        ),
        (lambda state, batch: ([state], [batch], None, "global"), "has no bottleneck adapter 'global'"),
    ],
)
def test_what_does_not_fit_is_refused_and_no_hook_is_left(arguments, message, vilt, batch):
    model = get_peft_model(vilt(), adapters.config("houlsby"))
    with pytest.raises(FedpeftError, match=message):
        adapters.hidden_activations(model, *arguments(adapters.adapter_state(model), batch()))
    assert not any(module._forward_hooks for module in model.modules())


def test_a_compacter_state_without_its_rule_is_refused(vilt, batch):
    model = get_peft_model(vilt(), adapters.config("compacter", reduction_factor=8))
    state = adapters.adapter_state(model)
    del state["shared.rule"]
    with pytest.raises(FedpeftError, match=r"lacks 'shared.rule'"):
        adapters.hidden_activations(model, [state], [batch()])

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The peers against their formulas, written out on flat vectors of parameters in double precision."""

from types import SimpleNamespace

import pytest
import torch
from nets import Batch, jacobian, layers_of, loss, model_fn, net, tokens
from peft import get_peft_model
from tiny_vilt import tiny_vilt

from fedpeft import adapters
from fedpeft.core.errors import FedpeftError
from fedpeft.importance import score
from fedpeft.importance.saliency import absolute, all_ones
from fedpeft.methods.adapters import adapter_parameters
from fedpeft.methods.bottleneck.adapters import PHMProjection

DATA = tokens(dtype=torch.float64)


@pytest.fixture
def case():
    """Model, layers, and by layer: theta, the Jacobian of the losses and the gradient g of their mean."""
    model = net(torch.float64)
    layers = layers_of(model)
    rows = jacobian(model_fn(model), layers, DATA)
    theta = {name: flat(group) for name, group in layers.items()}
    return SimpleNamespace(
        model=model, layers=layers, theta=theta, rows=rows, g={n: j.mean(0) for n, j in rows.items()}
    )


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def found(case, method, batches=(DATA,), **settings):
    return score(model_fn(case.model), case.layers, batches, loss, method=method, normalize=False, **settings)


def stacked(values):
    return torch.stack([torch.as_tensor(v, dtype=torch.float64) for v in values])


def hessian_product(case):
    """theta * (H g) by layer, from the full Hessian of the mean loss."""
    names = [n for n, _ in case.model.named_parameters() if n.startswith("blocks")]
    shapes = [case.model.get_parameter(n).shape for n in names]

    def mean_loss(vector):
        parts = vector.split([s.numel() for s in shapes])
        values = {n: part.view(s) for n, part, s in zip(names, parts, shapes, strict=True)}
        return loss(torch.func.functional_call(case.model, values, (DATA["tokens"],)), DATA).mean()

    theta = flat(case.model.get_parameter(n) for n in names)
    hessian = torch.autograd.functional.hessian(mean_loss, theta)
    products = theta * (hessian @ torch.autograd.functional.jacobian(mean_loss, theta))
    return products.split([len(t) for t in case.theta.values()])


EXPECTED = {
    "magnitude": lambda case: [t.abs() for t in case.theta.values()],
    "fishmask": lambda case: [j.square().mean(0) for j in case.rows.values()],
    "gradflow": lambda case: [g.square() for g in case.g.values()],
    "grasp": hessian_product,
    "snip": lambda case: snip_values(case),
}


def snip_values(case):
    values = [(case.theta[name] * g).abs() for name, g in case.g.items()]
    return [value / sum(v.sum() for v in values) for value in values]


@pytest.mark.slow
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("method", EXPECTED)
def test_saliencies_are_summed_or_averaged_over_a_layer(method, reduce, case):
    expected = stacked([getattr(values, reduce)() for values in EXPECTED[method](case)])
    torch.testing.assert_close(found(case, method, reduce=reduce), expected)


@pytest.mark.parametrize("method", ["lntk", "fishmask", "gradflow", "grasp", "snip", "rgn", "spt"])
def test_scores_do_not_depend_on_how_samples_are_cut_into_batches(method, case):
    parts = [Batch({k: v[cut] for k, v in DATA.items()}) for cut in (slice(0, 1), slice(1, 5))]
    torch.testing.assert_close(found(case, method, parts), found(case, method))


def test_rgn_is_the_mean_ratio_of_norms_of_tensors_that_are_not_zero(case):
    with torch.no_grad():
        case.model.blocks[1].wide.bias.zero_()
    gradients = {
        name: torch.autograd.grad(loss(case.model(DATA["tokens"]), DATA).mean(), group)
        for name, group in case.layers.items()
    }
    expected = []
    for name, group in case.layers.items():
        ratios = [g.norm() / p.norm() for p, g in zip(group, gradients[name], strict=True) if p.norm() > 0]
        assert len(ratios) == (7 if name == "block 1" else 8)  # the LayerNorm's bias is still zero
        expected.append(sum(ratios) / len(ratios))
    torch.testing.assert_close(found(case, "rgn"), stacked(expected).detach())
    whole = [flat(gradients[name]).norm() / flat(group).norm() for name, group in case.layers.items()]
    torch.testing.assert_close(found(case, "rgn", norms="layer"), stacked(whole))
    with torch.no_grad():
        for p in case.layers["block 1"]:
            p.zero_()
    with pytest.raises(FedpeftError, match="layer block 1 has only zeros"):
        found(case, "rgn")


def test_the_absolute_network_has_buffers_that_are_not_saved_too():
    module = torch.nn.Linear(2, 2)
    module.register_buffer("frozen", torch.tensor([-1.0, 2.0]), persistent=False)  # as VeRA's matrices
    module.register_buffer("mask", torch.tensor([0.0, -torch.inf]), persistent=False)
    module.register_buffer("finite_mask", torch.tensor([0.0, -1e9]), persistent=False)
    before = [tensor.clone() for tensor in (*module.parameters(), *module.buffers())]
    with absolute(module):
        assert module.weight.min() >= 0
        assert module.frozen.tolist() == [1, 2]
        assert module.mask.tolist() == [0, -torch.inf]
        assert module.finite_mask.tolist() == [0, -1e9]
    assert all(map(torch.equal, before, (*module.parameters(), *module.buffers())))


def test_the_absolute_network_has_no_negative_weight_of_a_rule_that_layers_share():
    model = tiny_vilt()
    rule = adapter_parameters(get_peft_model(model, adapters.config("compacter", reduction_factor=8)))["shared.rule"]
    with torch.no_grad():
        rule[0, 0] = -0.0
    before = rule.detach().clone()
    projections = [module for module in model.modules() if isinstance(module, PHMProjection)]
    assert any((module.weight < 0).any() for module in projections)
    with absolute(model):
        assert all((module.weight >= 0).all() for module in projections)
    assert torch.equal(rule.view(torch.int32), before.view(torch.int32))


def test_synflow_is_the_flow_of_the_absolute_network_on_ones(case):
    bits = {name: tensor.clone() for name, tensor in case.model.state_dict().items()}
    positive = net(torch.float64)
    for p in positive.parameters():
        p.data.abs_()
    positive(torch.ones_like(DATA["tokens"])).sum().backward()
    expected = stacked([flat([p * p.grad for p in group]).abs().mean() for group in layers_of(positive).values()])
    torch.testing.assert_close(found(case, "synflow", model=case.model), expected)
    for name, tensor in case.model.state_dict().items():
        assert torch.equal(tensor, bits[name])
        assert torch.equal(tensor.signbit(), bits[name].signbit())  # -0.0 too
    with pytest.raises(FedpeftError, match="pass model="):
        found(case, "synflow")


def test_synflow_gives_its_weights_back_when_the_model_fails(case):
    bits = {name: tensor.clone() for name, tensor in case.model.state_dict().items()}
    with pytest.raises(FedpeftError, match="logits of shape"):
        score(lambda batch: None, case.layers, [DATA], loss, method="synflow", model=case.model)
    assert all(torch.equal(tensor, bits[name]) for name, tensor in case.model.state_dict().items())


def test_ones_replace_floats_in_any_batch_and_nothing_else():
    from fedpeft.answering.answering import Batch as TrainingBatch

    ids, patches = torch.arange(3), torch.rand(3, 2)
    batch = TrainingBatch({"input_ids": ids, "pixels": patches}, ids, ids, ids > 1)
    made = all_ones(batch)
    assert torch.equal(made.inputs["pixels"], torch.ones(3, 2))
    assert torch.equal(made.inputs["input_ids"], ids)
    assert torch.equal(all_ones([(patches, "text")])[0][0], torch.ones(3, 2))


def test_fedselect_is_the_mean_change(case):
    previous = {name: [p.detach().clone() for p in group] for name, group in case.layers.items()}
    with torch.no_grad():
        case.model.blocks[0].scale += 1.0
        case.model.blocks[2].wide.weight -= 2.0
    sizes = [len(t) for t in case.theta.values()]
    expected = stacked([6 / sizes[0], 0, 2.0 * 72 / sizes[2]])
    torch.testing.assert_close(found(case, "fedselect", previous=previous), expected)
    with pytest.raises(FedpeftError, match="pass previous="):
        found(case, "fedselect")
    with pytest.raises(FedpeftError, match="previous parameters of layer block 1"):
        found(case, "fedselect", previous={**previous, "block 1": previous["block 1"][:2]})


@pytest.mark.parametrize("tau", [0.001, 0.1, 1.0])
def test_spt_counts_the_most_sensitive_parameters_of_all_layers(tau, case):
    sensitivity = [j.square().sum(0) for j in case.rows.values()]
    everything = torch.cat(sensitivity)
    count = max(1, round(tau * len(everything)))
    threshold = everything.sort(descending=True).values[count - 1]
    expected = stacked([(s >= threshold).sum() for s in sensitivity])
    assert expected.sum() == count
    assert torch.equal(found(case, "spt", tau=tau), expected)
    with pytest.raises(FedpeftError, match=r"tau is 0"):
        found(case, "spt", tau=0.0)


def test_fd_is_random_and_seeded(case):
    draws = [found(case, "fd", generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    with pytest.raises(FedpeftError, match="pass generator="):
        found(case, "fd")


def test_the_last_layers_are_the_best_of_last_k(case):
    assert found(case, "last_k", ()).tolist() == [1, 2, 3]


def test_the_first_layers_are_the_best_of_first_k(case):
    assert found(case, "first_k", ()).tolist() == [3, 2, 1]

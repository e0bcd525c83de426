# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What may and what may not be captured: shapes, dependence between samples, NaN."""

import contextlib

import pytest
import torch
from nets import jacobian, kernel_eigenvalues, layers_of, loss, model_fn, net, tokens
from torch import nn
from torch.nn import functional as F

from fedpeft.core.errors import FedpeftError
from fedpeft.importance import score
from fedpeft.importance.jacobian import Tape


class Sequential(nn.Module):
    """Reads (B, T, d), works on another layout, returns (B, C)."""

    def __init__(self, layout):
        super().__init__()
        self.layout = layout
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
            self.head = nn.Linear(6, 3)

    def forward(self, h):
        batch, length = h.shape[:2]
        h = h.transpose(0, 1) if self.layout == "tokens first" else h.reshape(batch * length, -1)
        for layer in self.layers:
            h = torch.tanh(layer(h))
        h = h.transpose(0, 1) if self.layout == "tokens first" else h.reshape(batch, length, -1)
        return self.head(h.mean(1))


def linear_layers(model):
    return {number: list(layer.parameters()) for number, layer in enumerate(model.layers)}


@pytest.mark.parametrize("layout", ["tokens first", "tokens flat"])
def test_samples_elsewhere_than_in_the_first_dimension_are_found(layout):
    model, batch = Sequential(layout), tokens(samples=5, length=4)
    expected = kernel_eigenvalues(jacobian(model_fn(model), linear_layers(model), batch))
    found = score(model_fn(model), linear_layers(model), [batch], loss, normalize=False)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def test_samples_elsewhere_are_refused_where_the_shape_hides_it():
    model, batch = Sequential("tokens first"), tokens(samples=4, length=4)
    with pytest.raises(FedpeftError, match=r"depends on other rows.*gradients='rows'"):
        score(model_fn(model), linear_layers(model), [batch], loss)
    found = score(model_fn(model), linear_layers(model), [batch], loss, normalize=False, gradients="rows")
    expected = kernel_eigenvalues(jacobian(model_fn(model), linear_layers(model), batch))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("samples", [15, 16])
def test_a_later_layer_of_the_same_input_does_not_hide_rows_that_are_not_samples(samples):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        prompt, head, tokens = nn.Linear(8, 8), nn.Linear(8, 3), torch.randn(16, 8)
        x = torch.randn(samples, 8)
    layers = {"prompt": list(prompt.parameters()), "head": list(head.parameters())}
    arguments = (lambda b: head(b + torch.tanh(prompt(tokens)).mean(0)), layers, [x], lambda y, _: y.square().sum(1))
    if samples == 16:  # as many as tokens
        with pytest.raises(FedpeftError, match="depends on other rows"):
            score(*arguments)
    else:
        torch.testing.assert_close(score(*arguments), score(*arguments, gradients="rows"), rtol=1e-4, atol=0)


class Mixing(nn.Module):
    """Three layers of the same shapes; between the first two, samples may depend on each other."""

    def __init__(self, mix):
        super().__init__()
        self.mix = mix
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, h):
        h = torch.tanh(self.layers[0](h[:, 0]))
        h = torch.tanh(self.layers[1](h - h.mean(0) if self.mix else h))
        return self.layers[2](h)


def test_samples_that_mix_between_layers_of_the_same_shapes_are_refused():
    for mix in (False, True):
        model = Mixing(mix)
        arguments = model_fn(model), linear_layers(model), [tokens()], loss
        if mix:
            with pytest.raises(FedpeftError, match="depends on other rows"):
                score(*arguments)
        else:
            torch.testing.assert_close(score(*arguments), score(*arguments, gradients="rows"), rtol=1e-4, atol=0)


def test_a_model_is_checked_once_for_what_it_does(monkeypatch):
    checks, check, model = [], Tape.check_independence, Mixing(mix=False)
    monkeypatch.setattr(Tape, "check_independence", lambda *given: (checks.append(given), check(*given)))

    def scored(batch, dim=None):
        centered = lambda y, b: loss(y if dim is None else y - y.mean(dim, keepdim=True), b)  # noqa: E731
        score(model_fn(model), linear_layers(model), [batch], centered, model=model)

    for batch in (tokens(), tokens(), tokens(samples=3)):
        scored(batch)
    assert len(checks) == 1
    scored(tokens(), dim=1)
    with pytest.raises(FedpeftError, match="depends on other rows"):
        scored(tokens(), dim=0)


def test_a_single_sample_does_not_vouch_for_several():
    model = Mixing(mix=False)

    def scored(samples):
        centered = lambda y, b: loss(y - y.mean(0, keepdim=True), b)  # noqa: E731
        score(model_fn(model), linear_layers(model), [tokens(samples=samples)], centered, model=model)

    with contextlib.suppress(FedpeftError):  # of one sample the loss is constant
        scored(1)
    with pytest.raises(FedpeftError, match="depends on other rows"):
        scored(3)


def test_batch_statistics_are_refused():
    layers = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    groups = {"first": list(layers[0].parameters()), "last": list(layers[2].parameters())}

    def function(batch):
        return layers(batch["tokens"][:, 0])

    with pytest.raises(FedpeftError, match="eval mode"):
        score(function, groups, [tokens()], loss)
    layers.eval()
    assert float(score(function, groups, [tokens()], loss).sum()) == pytest.approx(1)


class Computed(nn.Module):
    """Its matrices are computed: from factors, by a linear layer from a parameter, by scaling a parameter's columns."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.left, self.right = (nn.Parameter(torch.randn(6, 6)) for _ in range(2))
            self.length, self.direction = nn.Parameter(torch.rand(6)), nn.Parameter(torch.randn(5, 6))
            self.inner, self.head = nn.Linear(6, 6), nn.Linear(5, 3)

    def forward(self, h):
        h = torch.tanh(F.linear(h, self.left @ self.right))
        h = torch.tanh(F.linear(h, self.inner(self.left)))
        h = F.linear(h, self.length * F.normalize(self.direction, dim=1))
        return self.head(h.mean(1))


@pytest.mark.parametrize("samples", [4, 5, 6])
def test_rows_are_carried_back_to_what_a_weight_is_computed_from(samples):
    model, batch = Computed(), tokens(samples)
    layers = {
        "factors": [model.left, model.right],
        "columns": [model.length, model.direction],  # as many rows as there are samples, once
        "inner": list(model.inner.parameters()),
    }
    expected = kernel_eigenvalues(jacobian(model_fn(model), layers, batch))
    settings = {"normalize": False}
    if samples == 6:  # the inner linear layer seems to read samples
        with pytest.raises(FedpeftError, match="depends on other rows"):
            score(model_fn(model), layers, [batch], loss)
        settings["gradients"] = "rows"
    found = score(model_fn(model), layers, [batch], loss, **settings)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("method", ["lntk", "lntk_squared", "fishmask", "gradflow", "grasp", "snip", "rgn", "spt"])
def test_a_gradient_that_is_not_a_number_names_the_layer(method):
    model, batch = net(), tokens()

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g * torch.nan

    def function(batch):
        h = model.blocks[2](model.blocks[1](Broken.apply(model.blocks[0](batch["tokens"]))))
        return model.head(h.mean(1))

    with pytest.raises(FedpeftError, match=r"^layer block 0 has NaN or infinite gradients .*: [^.]*\.$"):
        score(function, layers_of(model), [batch], loss, method=method)


def test_a_parameter_that_is_not_a_number_names_the_layer():
    model = net()
    with torch.no_grad():
        model.blocks[1].scale[2] = torch.inf
    with pytest.raises(FedpeftError, match="layer block 1 has NaN or infinity in its parameters"):
        score(model_fn(model), layers_of(model), [tokens()], loss)


def test_a_loss_that_is_not_a_number_names_the_sample():
    model, batch = net(), tokens()
    batch["tokens"][3] = torch.nan
    with pytest.raises(FedpeftError, match="loss of sample 3 is nan"):
        score(model_fn(model), layers_of(model), [batch], loss)

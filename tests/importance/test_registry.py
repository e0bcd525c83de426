# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One call for every score: names, settings, normalization, and what is refused."""

import subprocess
import sys

import pytest
import torch
from nets import layers_of, loss, model_fn, net, tokens
from torch import nn

from fedpeft import importance
from fedpeft.core.errors import FedpeftError
from fedpeft.importance.registry import SCORES


def call(method, **settings):
    model = net()
    extra = {
        "fd": {"generator": torch.Generator().manual_seed(0)},
        "synflow": {"model": model},
        "fedselect": {"previous": {n: [torch.zeros_like(p) for p in g] for n, g in layers_of(model).items()}},
    }.get(method, {})
    return importance.score(model_fn(model), layers_of(model), [tokens()], loss, method=method, **extra, **settings)


@pytest.mark.parametrize("method", importance.names())
def test_every_score_is_a_distribution_over_layers_in_the_order_of_the_raw_one(method):
    scores, raw = call(method), call(method, normalize=False)
    assert scores.dtype == torch.float64
    assert scores.shape == (3,)
    assert float(scores.sum()) == pytest.approx(1, abs=1e-9)
    assert bool((scores >= 0).all())
    assert torch.equal(scores.argsort(), raw.argsort())


@pytest.mark.parametrize(
    ("raw", "expected"),
    [([1, 3], [0.25, 0.75]), ([-1, 1, 0], [0, 2 / 3, 1 / 3]), ([-2, -2], [0.5, 0.5]), ([5], [1]), ([-5], [1])],
)
def test_negative_scores_are_shifted_before_they_are_shared_out(raw, expected, monkeypatch):
    monkeypatch.setattr(SCORES, "get", lambda name: lambda task: torch.tensor(raw, dtype=torch.float64))
    model = net()
    layers = {number: list(model.head.parameters()) for number in range(len(raw))}
    scores = importance.score(model_fn(model), layers, [], loss, method="any")
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64))


REFUSED = [
    ({"method": "lntkk"}, "'lntkk' is unknown: did you mean 'lntk'"),
    ({"method": "lntk", "target": "labels"}, "lntk: target is 'labels', allowed are loss, logits"),
    ({"method": "lntk", "directions": 4}, "set target to 'logits', or leave directions out"),
    ({"method": "lntk", "target": "logits", "directions": -1}, "directions is -1"),
    ({"method": "lntk", "reduce": "mean"}, "lntk.reduce is not a setting"),
    ({"method": "snip", "reduce": "max"}, "snip: reduce is 'max', allowed are sum, mean"),
    ({"method": "spt", "tau": 2.0}, "tau is 2.0"),
    ({"method": "last_k", "k": 4}, "last_k has no setting 'k'"),
    ({"gradients": "fast"}, "gradients is 'fast', allowed are captured, rows"),
    ({"batches": []}, "there is no batch"),
    ({"layers": {}}, "there are no layers"),
    ({"layers": {"empty": []}}, "layer empty has no trainable parameters"),
    ({"layers": [torch.zeros(2)]}, "layers is a list: give a mapping"),
    ({"layers": {"x": torch.zeros(2)}}, r"layers\['x'\] is a tensor of shape \(2,\): give a list"),
    ({"layers": {"x": nn.Linear(1, 1)}}, r"layers\['x'\] is a Linear: give a list .* list\(module\.parameters\(\)\)"),
    ({"layers": {"x": nn.Linear}}, r"layers\['x'\] is a type: give a list"),
    ({"previous": {"x": 3}}, r"previous\['x'\] is a int: give a list"),
    ({"layers": {"x": [torch.zeros(2, requires_grad=True) * 2]}}, "layer x lists a tensor of shape"),
    ({"loss": lambda logits, batch: loss(logits, batch).mean()}, "one value for each sample"),
    ({"model_fn": lambda batch: batch["tokens"]}, r"logits of shape \(B, C\)"),
    ({"layers": {"idle": [torch.zeros(2, requires_grad=True)]}}, "no scored parameter influences"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED)
def test_bad_input_is_refused_in_a_sentence(change, sentence):
    model = net()
    arguments = {"model_fn": model_fn(model), "layers": layers_of(model), "batches": [tokens()], "loss": loss}
    with pytest.raises(FedpeftError, match=sentence):
        importance.score(**{**arguments, **change})


DROPPED = {
    "dropout": nn.Dropout(0.1),
    "alpha_dropout": nn.AlphaDropout(0.1),
    "multi_head_attention_forward": nn.MultiheadAttention(6, 1, dropout=0.1, batch_first=True),
    "scaled_dot_product_attention": nn.Module(),
}


def dropping(name, h):
    layer = DROPPED[name]
    if name == "scaled_dot_product_attention":
        return torch.nn.functional.scaled_dot_product_attention(h, h, h, dropout_p=0.1 if layer.training else 0.0)
    return layer(h, h, h)[0] if isinstance(layer, nn.MultiheadAttention) else layer(h)


@pytest.mark.parametrize("name", DROPPED)
@pytest.mark.parametrize("method", ["lntk", "lntk_squared", "grasp", "snip"])
def test_dropout_that_is_on_is_refused(method, name):
    model = net()
    arguments = (lambda batch: model(dropping(name, batch["tokens"])), layers_of(model), [tokens()], loss)
    DROPPED[name].train()
    with pytest.raises(FedpeftError, match=rf"\({name}\).*call its \.eval\(\) first\.$"):
        importance.score(*arguments, method=method)
    DROPPED[name].eval()
    assert torch.equal(importance.score(*arguments, method=method), importance.score(*arguments, method=method))


@pytest.mark.parametrize("gradients", ["captured", "rows"])
@pytest.mark.parametrize("norm", [nn.BatchNorm1d, lambda n: nn.InstanceNorm1d(n, track_running_stats=True)])
@pytest.mark.parametrize("method", ["lntk", "gradflow", "snip", "rgn", "grasp", "synflow"])
def test_statistics_that_would_change_are_refused_and_stay(method, norm, gradients):
    model = nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (4, 2)), norm(4), nn.Flatten(1), nn.Linear(8, 3))
    layers = {0: list(model[0].parameters()), 1: list(model[-1].parameters())}
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    arguments = (lambda batch: model(batch["tokens"][:, 0]), layers, [tokens()], loss)
    with pytest.raises(FedpeftError, match=r"would change its statistics.*call its \.eval\(\) first\.$"):
        importance.score(*arguments, method=method, model=model, gradients=gradients)
    model.eval()
    importance.score(*arguments, method=method, model=model, gradients=gradients)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_scores_that_are_all_zero_are_refused_unless_raw():
    model = net()
    with torch.no_grad():
        model.head.weight.zero_()
    arguments = (model_fn(model), layers_of(model), [tokens()], loss)
    with pytest.raises(FedpeftError, match="gives every layer 0"):
        importance.score(*arguments)
    assert importance.score(*arguments, normalize=False).tolist() == [0, 0, 0]


def test_a_score_of_a_notebook_can_be_added(monkeypatch):
    monkeypatch.setattr(SCORES, "_own", dict(SCORES._own))
    importance.register("reverse", lambda task: torch.arange(len(task.layers), 0, -1))
    assert call("reverse", normalize=False).tolist() == [3, 2, 1]


@pytest.mark.parametrize("method", importance.names())
def test_layers_may_be_iterators(method):
    def once(layers):
        return {name: iter(group) for name, group in layers.items()}

    model = net()
    before = {name: [torch.zeros_like(p) for p in group] for name, group in layers_of(model).items()}
    found = [
        importance.score(
            model_fn(model),
            form(layers_of(model)),
            [tokens()],
            loss,
            method=method,
            model=model,
            previous=form(before),
            generator=torch.Generator().manual_seed(0),
        )
        for form in (dict, once)
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("result", [torch.ones(2), torch.ones(3, 1), torch.tensor(1.0), [1.0, 2.0, 3.0], None])
def test_a_score_of_another_shape_is_refused(result, monkeypatch):
    monkeypatch.setattr(SCORES, "_own", {"odd": lambda task: result})
    with pytest.raises(FedpeftError, match=r"score 'odd' returned a .*, not a tensor of shape \(3,\): have it return"):
        call("odd")


def test_a_score_that_keeps_its_graph_is_detached(monkeypatch):
    monkeypatch.setattr(SCORES, "_own", {"graph": lambda task: torch.ones(3, requires_grad=True) * 2})
    assert not call("graph").requires_grad


def test_settings_of_a_job_are_checked_without_a_model():
    assert importance.method_settings("lntk", {"target": "logits"}).target == "logits"
    assert importance.method_settings("synflow").reduce == "mean"
    assert importance.method_settings("fd") is None
    with pytest.raises(FedpeftError, match=r"rgn\.norms is None"):
        importance.method_settings("rgn", {"norms": None})


@pytest.mark.slow
def test_importing_the_package_imports_neither_torch_nor_flare():
    code = (
        "import sys; from fedpeft.importance import MemorySettings, names, score; "
        "print({'torch', 'nvflare'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

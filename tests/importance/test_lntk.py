# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""LNTK scores against the definition: Jacobians of single samples, eigenvalues of a full decomposition.

Eigenvalues and scores at the ends of the range of numbers.
"""

import pytest
import torch
from nets import CLASSES, Batch, jacobian, kernel_eigenvalues, layers_of, loss, model_fn, net, tokens

from fedpeft.core.errors import FedpeftError
from fedpeft.importance import adapter_layers, score
from fedpeft.importance import jacobian as jacobian_module
from fedpeft.importance import lntk as lntk_module
from fedpeft.importance.lntk import gram, principal_eigenvalue
from fedpeft.importance.registry import normalized

ADAPTERS = [
    ("houlsby", {}),
    ("pfeiffer", {"layer_norm": True}),
    ("parallel", {}),
    ("compacter", {"reduction_factor": 4}),
    ("lora", {}),
]


@pytest.fixture(scope="module")
def vilt(tiny_source):
    from transformers import ViltModel

    return lambda: ViltModel.from_pretrained(tiny_source).eval()


@pytest.fixture(scope="module")
def questions():
    """Four samples of the two-layer ViLT, patches embedded already, the last question padded."""
    rng = torch.Generator().manual_seed(3)
    mask = torch.ones(4, 5, dtype=torch.long)
    mask[3, 3:] = 0
    return Batch(
        input_ids=torch.randint(0, 40, (4, 5), generator=rng),
        attention_mask=mask,
        image_embeds=torch.randn(4, 4, 16, generator=rng),
        pixel_mask=torch.ones(4, 4, dtype=torch.long),
        target=torch.tensor([0, 1, 2, 1]),
    )


def head_of(model):
    weight = torch.randn(3, 16, generator=torch.Generator().manual_seed(4))
    return lambda batch: model(**{k: v for k, v in batch.items() if k != "target"}).pooler_output @ weight.T


def with_adapter(model, name, settings, seed=5):
    from peft import get_peft_model

    from fedpeft import adapters

    rng = torch.Generator().manual_seed(seed)
    model = get_peft_model(model, adapters.config(name, **settings)).eval()
    state = {k: 0.3 * torch.randn(t.shape, generator=rng) for k, t in adapters.adapter_state(model).items()}
    adapters.load_adapter_state(model, state)
    return model


@pytest.fixture
def no_slow_rows(monkeypatch):
    """Fail where a parameter would be differentiated row by row."""
    original = jacobian_module._row_by_row

    def refuse(values, parameters):
        assert not parameters
        return original(values, parameters)

    monkeypatch.setattr(jacobian_module, "_row_by_row", refuse)


@pytest.mark.parametrize("target", ["loss", "logits"])
@pytest.mark.parametrize(("name", "settings"), ADAPTERS)
def test_scores_of_adapters_are_eigenvalues_of_the_jacobian(name, settings, target, vilt, questions, no_slow_rows):
    model = with_adapter(vilt(), name, settings)
    function, layers = head_of(model), adapter_layers(model)
    expected = kernel_eigenvalues(jacobian(function, layers, questions, target=target))
    found = score(function, layers, [questions], loss, target=target, normalize=False)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("target", ["loss", "logits"])
def test_scores_of_whole_transformer_layers(target, vilt, questions, no_slow_rows):
    model = vilt()
    layers = {number: list(layer.parameters()) for number, layer in enumerate(model.encoder.layer)}
    expected = kernel_eigenvalues(jacobian(head_of(model), layers, questions, target=target))
    found = score(head_of(model), layers, [questions], loss, target=target, normalize=False)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def test_a_frozen_second_adapter_is_part_of_the_function_but_not_of_the_score(vilt, questions, no_slow_rows):
    from fedpeft import adapters

    model = with_adapter(vilt(), "houlsby", {})
    model.add_adapter("global", adapters.config("houlsby", init_seed=7))
    model.base_model.set_adapter(["default", "global"])  # their weights are fused for one pass
    adapters.set_trainable_layers(model, [0])
    function, layers = head_of(model), adapter_layers(model)
    flags = [p.requires_grad for p in model.parameters()]
    found = score(function, layers, [questions], loss, normalize=False)
    assert [p.requires_grad for p in model.parameters()] == flags
    model.requires_grad_(True)
    torch.testing.assert_close(found, kernel_eigenvalues(jacobian(function, layers, questions)), rtol=1e-4, atol=0)


@pytest.mark.parametrize("target", ["loss", "logits"])
@pytest.mark.parametrize("shared", [False, True])
def test_scores_of_any_model_whatever_reads_its_parameters(target, shared):
    model = net()
    if shared:
        model.blocks[2].wide = model.blocks[0].wide
    layers, batch = layers_of(model), tokens()
    expected = kernel_eigenvalues(jacobian(model_fn(model), layers, batch, target=target))
    found = score(model_fn(model), layers, [batch], loss, target=target, normalize=False)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)
    slow = score(model_fn(model), layers, [batch], loss, target=target, normalize=False, gradients="rows")
    torch.testing.assert_close(found, slow, rtol=1e-4, atol=0)


@pytest.mark.parametrize("target", ["loss", "logits"])
@pytest.mark.parametrize("held_bytes", [2**30, 1])
def test_several_batches_are_one_set_of_samples(target, held_bytes, monkeypatch):
    monkeypatch.setattr(lntk_module, "HELD_BYTES", held_bytes)
    model, batch = net(), tokens()
    parts = [Batch({k: v[cut] for k, v in batch.items()}) for cut in (slice(0, 2), slice(2, 5))]
    whole = score(model_fn(model), layers_of(model), [batch], loss, target=target)
    groups, rows_of = [], lntk_module._kernels
    monkeypatch.setattr(lntk_module, "_kernels", lambda *args: groups.append(args[2]) or rows_of(*args))
    cut = score(model_fn(model), layers_of(model), iter(parts), loss, target=target)
    torch.testing.assert_close(cut, whole, rtol=1e-5, atol=0)
    assert groups == ([[0], [1], [2]] if held_bytes == 1 else [[0, 1, 2]])


@pytest.mark.parametrize("samples", [1, 2, 3, 40])
def test_scores_are_those_of_the_jacobian_for_any_number_of_samples(samples):
    model, batch = net(), tokens(samples)
    expected = kernel_eigenvalues(jacobian(model_fn(model), layers_of(model), batch))
    found = score(model_fn(model), layers_of(model), [batch], loss, normalize=False)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def test_scores_are_shares_and_leave_the_model_as_it_was():
    model, batch = net(), tokens()
    model.blocks[1].requires_grad_(False)
    before = {name: (p.clone(), p.requires_grad) for name, p in model.named_parameters()}
    scores = score(model_fn(model), layers_of(model), [batch], loss)
    assert scores.dtype == torch.float64
    assert scores.shape == (3,)
    assert float(scores.sum()) == pytest.approx(1, abs=1e-12)
    assert bool((scores > 0).all())
    assert torch.equal(scores, score(model_fn(model), layers_of(model), [batch], loss))
    for name, p in model.named_parameters():
        assert p.grad is None
        assert torch.equal(p, before[name][0])
        assert p.requires_grad == before[name][1]


@pytest.mark.parametrize("gradients", ["captured", "rows"])
@pytest.mark.parametrize("target", ["loss", "logits"])
def test_rows_are_zero_in_batches_that_do_not_use_a_parameter(target, gradients):
    experts = torch.nn.ModuleList(torch.nn.Linear(6, 3) for _ in range(2))
    layers = {number: list(expert.parameters()) for number, expert in enumerate(experts)}
    batches = [tokens(samples=2 + number, seed=number) for number in range(2)]

    def function_of(expert):
        return lambda batch: expert(batch["tokens"].mean(1))

    def function(batch):
        return function_of(experts[len(batch["target"]) - 2])(batch)

    expected = [
        kernel_eigenvalues(jacobian(function_of(expert), {0: layers[number]}, batches[number], target=target))
        for number, expert in enumerate(experts)
    ]
    found = score(function, layers, batches, loss, target=target, normalize=False, gradients=gradients)
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-4, atol=0)


def test_a_layer_that_the_outputs_do_not_depend_on_scores_nothing():
    model = net()
    layers = {**layers_of(model), "idle": list(torch.nn.Linear(2, 2).parameters())}
    scores = score(model_fn(model), layers, [tokens()], loss)
    assert float(scores[3]) == 0
    assert float(scores.sum()) == pytest.approx(1)


@pytest.mark.parametrize("gradients", ["captured", "rows"])
def test_products_of_half_precision_gradients_do_not_underflow(gradients):
    model, batch = net(torch.float16), tokens(dtype=torch.float16)

    def tiny(logits, batch):
        return 1e-3 * loss(logits.float(), batch)

    single = net()
    exact = score(model_fn(single), layers_of(single), [tokens()], loss)
    found = score(model_fn(model), layers_of(model), [batch], tiny, gradients=gradients)
    torch.testing.assert_close(found, exact, rtol=0.15, atol=0)  # the gradients themselves are this coarse


@pytest.mark.parametrize(
    ("method", "size"), [("gradflow", 1 / 64), ("snip", 1 / 64), ("rgn", 1 / 64), ("grasp", 1 / 4), ("grasp", 1 / 16)]
)
def test_means_and_products_of_other_scores_in_half_precision_do_not_underflow(method, size):
    """What is computed in half precision is above its least number; a mean over samples or a product is below."""
    rng = torch.Generator().manual_seed(0)
    weights = [(torch.randn(1, 4, generator=rng) / 256).half() for _ in range(2)]
    samples = (size * torch.rand(1024, 4, generator=rng)).half()

    def scores(dtype):
        first, second = (weight.to(dtype, copy=True) for weight in weights)
        return score(
            lambda batch: batch @ (first + 2 * second).T,
            {"first": [first], "second": [second]},
            [samples.to(dtype)],
            lambda logits, batch: logits.to(torch.promote_types(dtype, torch.float32)).square().sum(1) / 64,
            method=method,
            normalize=False,
        )

    torch.testing.assert_close(scores(torch.float16), scores(torch.float64), rtol=0.01, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gradients", ["captured", "rows"])
def test_all_directions_are_the_kernel_of_all_logits(gradients, dtype):
    model, batch = net(dtype), tokens(dtype=dtype)
    settings = {"target": "logits", "normalize": False, "gradients": gradients}
    expected = kernel_eigenvalues(jacobian(model_fn(model), layers_of(model), batch, target="logits"))
    for directions in (CLASSES, CLASSES + 1):
        found = score(model_fn(model), layers_of(model), [batch], loss, directions=directions, **settings)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["houlsby", "compacter", "lora"])
def test_few_directions_never_raise_a_score_and_hold_most_of_it(name, vilt, questions, no_slow_rows):
    model = with_adapter(vilt(), name, {"reduction_factor": 4} if name == "compacter" else {})
    settings = {"target": "logits", "normalize": False}
    exact = score(head_of(model), adapter_layers(model), [questions], loss, **settings)
    last = exact * 0
    for directions in (1, 2, 3):
        found = score(head_of(model), adapter_layers(model), [questions], loss, directions=directions, **settings)
        assert bool((found <= exact * (1 + 1e-5)).all())
        assert bool((found >= last * (1 - 1e-5)).all())
        last = found
    torch.testing.assert_close(last, exact, rtol=1e-5, atol=0)


@pytest.mark.slow
def test_directions_are_those_of_a_sample_alone_whatever_the_batches():
    model, batch = net(torch.float64), tokens(dtype=torch.float64)
    parts = [Batch({k: v[cut] for k, v in batch.items()}) for cut in (slice(0, 2), slice(2, 5))]
    settings = {"target": "logits", "directions": 1}
    whole = score(model_fn(model), layers_of(model), [batch], loss, **settings)
    torch.testing.assert_close(score(model_fn(model), layers_of(model), parts, loss, **settings), whole)
    assert torch.equal(score(model_fn(model), layers_of(model), [batch], loss, **settings), whole)


def test_hashed_rows_fit_into_what_may_be_held(monkeypatch):
    model, batch = net(), tokens()
    settings = {"target": "logits", "directions": CLASSES, "normalize": False}
    exact = score(model_fn(model), layers_of(model), [batch], loss, **settings)
    monkeypatch.setattr(lntk_module, "MAX_BYTES_OF_DIRECTIONS", 1)
    widths = []
    original = lntk_module._Hash.__init__
    monkeypatch.setattr(
        lntk_module._Hash,
        "__init__",
        lambda self, parameter, width, seed: widths.append(width) or original(self, parameter, width, seed),
    )
    found = score(model_fn(model), layers_of(model), [batch], loss, **settings)
    assert set(widths) == {1}
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=0)  # any orthonormal directions will do when all are kept


def test_a_nan_gradient_is_refused_by_its_layer_with_directions_too():
    model, batch = net(), tokens()

    def function(batch):
        logits = model_fn(model)(batch)
        return logits + torch.sqrt((model.blocks[1].gain * 0).clamp(min=0))

    with pytest.raises(FedpeftError, match="block 1 has NaN"):
        score(function, layers_of(model), [batch], loss, target="logits", directions=2)


def algorithm_1(function, layers, batch):
    """The supplement's Algorithm 1, line by line, for named tensors; then summed over a layer."""
    logits = function(batch)
    scores = []
    for parameters in layers.values():
        gradients = [torch.zeros_like(p) for p in parameters]
        for b in range(logits.shape[0]):
            for i in range(logits.shape[1]):
                for p in parameters:
                    p.grad = None
                logits[b, i].backward(retain_graph=True)
                for n, p in enumerate(parameters):
                    if p.grad is not None:
                        gradients[n] = gradients[n] + p.grad**2
        total = 0.0
        for gradient in gradients:
            j = gradient.view(gradient.shape[0], -1)
            total += float(torch.linalg.eigvalsh(j @ j.T).max())
        scores.append(total)
    return torch.tensor(scores, dtype=torch.float64)


@pytest.mark.slow
def test_lntk_squared_is_algorithm_1():
    model, batch = net(torch.float64), tokens(dtype=torch.float64)
    layers = layers_of(model)
    found = score(model_fn(model), layers, [batch], loss, method="lntk_squared", normalize=False)
    expected = algorithm_1(model_fn(model), layers, batch)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    mean = score(model_fn(model), layers, [batch], loss, method="lntk_squared", normalize=False, reduce="mean")
    torch.testing.assert_close(mean, expected / 9, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1e-13, 1.0, 1e18, 1e30])
def test_the_kernel_of_single_precision_rows_of_any_size(scale):
    rows = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = float(torch.linalg.eigvalsh(rows @ rows.T)[-1])
    assert principal_eigenvalue(gram((rows * scale).float())) / scale**2 == pytest.approx(expected, rel=1e-4)


def test_a_trace_that_overflows():
    matrix = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64) * 1e308
    assert principal_eigenvalue(matrix) == pytest.approx(1.5e308)


def test_scores_whose_sum_overflows_sum_to_1():
    assert normalized(torch.tensor([1.5e308, 1.5e308, 0.0], dtype=torch.float64), "lntk").tolist() == [0.5, 0.5, 0.0]
    assert normalized(torch.tensor([1.5e308, -1.5e308], dtype=torch.float64), "grasp").tolist() == [1.0, 0.0]

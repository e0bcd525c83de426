# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Products of LoRA's and of prompts' factors are averaged, and their factors are the best of their rank."""

import pytest
import torch

from fedpeft import methods
from fedpeft.alignment.low_rank import integrate_products, stack_products
from fedpeft.alignment.settings import RobustSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import layer_of, layers_of
from fedpeft.job.catalog import MethodEntry
from fedpeft.methods.aggregations import admitted
from fedpeft.methods.prompts import tokens_of
from fedpeft.methods.settings import MethodSettings

A, B = "layer.0.query.A", "layer.0.query.B"


def states(count, *, rank=4, outputs=12, inputs=10, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [
        {A: torch.randn(rank, inputs, generator=draw), B: torch.randn(outputs, rank, generator=draw)}
        for _ in range(count)
    ]


def product(state):
    return state[B].double() @ state[A].double()


def mean_of(some, counts):
    return sum(count * product(state) for state, count in zip(some, counts, strict=True)) / sum(counts)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_it_is_the_best_approximation_of_the_mean_of_the_products(count):
    some, counts = states(count), [3, 1, 2, 5, 4][:count]
    merged, _ = integrate_products(some, counts)
    left, singular, right = torch.linalg.svd(mean_of(some, counts))
    best = left[:, :4] * singular[:4] @ right[:4]
    assert torch.allclose(product(merged), best, atol=1e-5)


def test_sites_that_share_their_directions_lose_nothing():
    (first,) = states(1)
    some = [{A: first[A], B: factor * first[B]} for factor in (0.5, 2.0)]
    merged, _ = integrate_products(some, [1, 3])
    assert torch.allclose(product(merged), mean_of(some, [1, 3]), atol=1e-5)


def test_one_site_gets_its_product_back_and_the_factors_have_equal_norms():
    (own,) = states(1)
    merged, _ = integrate_products([own], [7])
    assert torch.allclose(product(merged), product(own), atol=1e-5)
    assert torch.allclose(merged[A].norm(dim=1), merged[B].norm(dim=0), rtol=1e-4)


def test_the_order_of_the_sites_does_not_matter():
    some = states(3)
    forth, _ = integrate_products(some, [1, 2, 3])
    back, _ = integrate_products(some[::-1], [3, 2, 1])
    assert all(torch.allclose(forth[key], back[key], atol=1e-4) for key in forth)


def test_untrained_factors_stay_trainable():
    some = states(3)
    for state in some:
        state[B] = torch.zeros_like(state[B])
    merged, _ = integrate_products(some, [1, 1, 1])
    assert torch.allclose(merged[A], sum(state[A] for state in some) / 3, atol=1e-6)
    assert not merged[B].any()


@pytest.mark.parametrize("ranks", [(4, 500), (500, 4), (4, 500, 11)])
def test_no_rank_beyond_that_of_any_product_reaches_the_sites(ranks):
    some = [states(1, rank=rank, seed=rank)[0] for rank in ranks]
    counts = [1, 2, 3][: len(ranks)]
    merged, _ = integrate_products(some, counts)
    assert merged[A].shape == (10, 10)
    assert merged[B].shape == (12, 10)
    assert torch.allclose(product(merged), mean_of(some, counts), atol=1e-3)
    for state in some:
        state[B] = torch.zeros_like(state[B])
    assert integrate_products(some, counts, previous=merged)[0][A].shape == (10, 10)


def test_factors_that_all_sites_have_keep_their_rank_however_large():
    some = states(3, rank=64)
    merged, _ = integrate_products(some, [1, 1, 1], previous=some[0])
    assert merged[A].shape == (64, 10)
    assert torch.allclose(product(merged), mean_of(some, [1, 1, 1]), atol=1e-3)


def test_a_place_that_nobody_sent_keeps_its_values_and_others_are_averaged():
    some = states(2)
    previous = {**some[0], "layer.1.query.A": torch.ones(4, 10), "layer.1.query.B": torch.ones(12, 4)}
    for number, state in enumerate(some):
        state["layer.0.query.bias"] = torch.full((2,), float(number))
    merged, _ = integrate_products(some, [1, 1], previous={**previous, "layer.0.query.bias": torch.zeros(2)})
    assert torch.equal(merged["layer.1.query.A"], previous["layer.1.query.A"])
    assert merged["layer.0.query.bias"].tolist() == [0.5, 0.5]


def test_a_site_with_nan_is_named():
    some = states(2)
    some[1][B][0, 0] = float("nan")
    with pytest.raises(FedpeftError, match="site b"):
        integrate_products(some, [1, 1], sites=["a", "b"])


LAYERS, TOKENS, WIDTH, RANK = 3, 7, 10, 4


def prompt_states(count, *, together, seed=0):
    draw = torch.Generator().manual_seed(seed)
    places = [f"layer.{layer}.prompt" for layer in range(LAYERS)]
    bases = ["shared.basis"] if together else [f"{place}.basis" for place in places]
    return [
        {
            **{f"{place}.coefficients": torch.randn(TOKENS, RANK, generator=draw) for place in places},
            **{basis: torch.randn(RANK, WIDTH, generator=draw) for basis in bases},
        }
        for _ in range(count)
    ]


def prompts_of(state):
    """The prompts of all layers that a state has, by layer, in float64."""
    doubled = {key: tensor.double() for key, tensor in state.items()}
    return {layer: tokens_of(doubled, layer) for layer in layers_of(state)}


def best(matrix):
    left, singular, right = torch.linalg.svd(matrix, full_matrices=False)
    return left[:, :RANK] * singular[:RANK] @ right[:RANK]


@pytest.mark.parametrize("together", [False, True], ids=["per block", "concatenated"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_prompts_are_the_best_approximation_of_their_mean(count, together):
    some, counts = prompt_states(count, together=together), [3, 1, 2, 5, 4][:count]
    merged, _ = integrate_products(some, counts)
    assert {key: tensor.shape for key, tensor in merged.items()} == {key: t.shape for key, t in some[0].items()}
    every = [prompts_of(state) for state in some]
    mean = [sum(n * own[k] for n, own in zip(counts, every, strict=True)) / sum(counts) for k in range(LAYERS)]
    expected = best(torch.cat(mean)).split(TOKENS) if together else [best(tokens) for tokens in mean]
    for layer, tokens in prompts_of(merged).items():
        assert torch.allclose(tokens, expected[layer], atol=1e-5)


def test_layers_that_some_or_no_sites_sent_keep_their_own_mean():
    before, *some = prompt_states(4, together=True)
    sent = [{0, 1}, {0}, {1}]  # nobody sends the prompts of layer 2
    parts = [
        {key: t for key, t in s.items() if layer_of(key) in {None, *own}} for s, own in zip(some, sent, strict=True)
    ]
    merged, _ = integrate_products(parts, [1, 2, 3], previous=before)
    first, second, third = (prompts_of(state) for state in parts)
    mean = [(first[0] + 2 * second[0]) / 3, (first[1] + 3 * third[1]) / 4, prompts_of(before)[2]]
    assert torch.allclose(torch.cat(list(prompts_of(merged).values())), best(torch.cat(mean)), atol=1e-5)


def test_no_site_exceeds_its_share_of_a_layer_that_few_sent():
    """The site with 1,000 samples does not send layer 0; the other two weigh the same there."""
    before, *some = prompt_states(4, together=True)
    parts = [
        {key: t for key, t in s.items() if layer_of(key) in {None, own}} for s, own in zip(some, (0, 1, 0), strict=True)
    ]
    robust = RobustSettings(max_share=0.5)
    merged, _ = integrate_products(parts, [100, 1000, 300], previous=before, robust=robust)
    first, second, third = (prompts_of(state) for state in parts)
    mean = [(first[0] + third[0]) / 2, second[1], prompts_of(before)[2]]
    assert torch.allclose(torch.cat(list(prompts_of(merged).values())), best(torch.cat(mean)), atol=1e-5)


def test_of_lora_beside_prompts_the_stack_takes_lora_alone():
    some = [{**lora, **prompts} for lora, prompts in zip(states(2), prompt_states(2, together=True), strict=True)]
    merged, _ = stack_products(some, [1, 1])
    assert merged[A].shape[0] == 8
    assert torch.allclose(merged["shared.basis"], (some[0]["shared.basis"] + some[1]["shared.basis"]) / 2)
    refactored, _ = integrate_products(some, [1, 1])
    alone, _ = integrate_products([{A: state[A], B: state[B]} for state in some], [1, 1])
    assert torch.equal(refactored[A], alone[A])
    assert torch.equal(refactored[B], alone[B])


def test_decomposed_prompts_are_averaged_as_factors_unless_a_job_says_otherwise():
    assert MethodSettings(name="dvpt").aggregation == "fedavg"
    assert MethodSettings(name="dvpt", aggregation="svd").rule.label == "SVD"
    with pytest.raises(FedpeftError, match="which name='dvpt' does not declare: use aggregation='fedavg' or 'svd' or"):
        MethodSettings(name="dvpt", aggregation="stack")
    with pytest.raises(FedpeftError, match="unequal widths are not supported for name='dvpt'"):
        MethodSettings(name="dvpt", aggregation="svd", site_settings={"slake": {"rank": 2}})


def test_lora_beside_decomposed_prompts_is_averaged_by_products_and_never_stacked():
    """Only beside LoRA's factors is a frozen matrix that takes up a sum of products: prompts would be averaged."""
    method = methods.get("lora_dvpt")
    assert admitted(method, head=False) == ["fedavg", "svd", "none"]
    assert admitted(methods.get("lora_vpt"), head=False) == ["fedavg", "svd", "stack", "none"]
    assert MethodSettings(name="lora_dvpt", aggregation=("stack", "svd")).aggregation == "svd"
    assert "SVD of products" in MethodEntry(name="", method=method, trained=0, exchanged=0).abilities
    with pytest.raises(FedpeftError, match=r"sites of unequal rank \(site_settings\) need aggregation='svd';"):
        MethodSettings(name="lora_dvpt", site_settings={"slake": {"lora": {"r": 2}}})
    assert MethodSettings(name="lora_dvpt", aggregation="svd", site_settings={"slake": {"lora": {"r": 2}}})

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""LoRA's products are averaged, and their factors are the best of their rank."""

import pytest
import torch

from fedpeft.alignment.low_rank import integrate_products
from fedpeft.errors import FedpeftError

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

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""low_rank.py: each aggregation's distance from the mean of the products."""

import pytest
import torch

RUN = ("federation.sites=[slake, vqa-rad]", "data.train_size=4", "data.validation_size=2", "data.test_size=2")
EXACT = "factors side by side (stack)"


@pytest.fixture
def low_rank(benchmark):
    return benchmark("low_rank")


def lora(rank, seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"A": (rank, 8), "B": (6, rank)}
    return {f"layer.0.query.{name}": torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_an_error_is_the_relative_distance_from_the_mean_of_the_products(low_rank):
    states, counts = [lora(2, 0), lora(2, 1)], [1, 3]
    downs, ups = ([state[f"layer.0.query.{name}"].double() for state in states] for name in "AB")
    exact = 0.25 * ups[0] @ downs[0] + 0.75 * ups[1] @ downs[1]
    naive = (0.25 * ups[0] + 0.75 * ups[1]) @ (0.25 * downs[0] + 0.75 * downs[1])
    best = torch.linalg.svdvals(exact)
    found = low_rank.errors(states, counts)
    assert found.keys() == {*low_rank.OF_ONE_RANK, *low_rank.OF_ANY_RANKS}
    assert found[EXACT] < 1e-4
    assert found["mean of the factors (fedavg)"] == pytest.approx(100 * float((naive - exact).norm() / exact.norm()))
    svd = found["mean of the products, factored (svd)"]
    assert svd == pytest.approx(100 * float(best[2:].norm() / best.norm()), rel=1e-4)
    assert svd < found["aligned, then averaged (pia)"]


def test_of_unequal_ranks_only_products_are_averaged(low_rank):
    found = low_rank.errors([lora(2, 0), lora(3, 1)], [1, 1])
    assert found.keys() == low_rank.OF_ANY_RANKS.keys()
    assert found[EXACT] < 1e-4


@pytest.mark.slow
def test_a_federation_is_run_and_measured_after_each_round(low_rank, tiny_source):
    first, second = low_rank.run(2, 0, [f"backbone.source={tiny_source}", "method.aggregation=fedavg", *RUN])
    assert first.keys() == second.keys() == {*low_rank.OF_ONE_RANK, *low_rank.OF_ANY_RANKS}
    assert max(first[EXACT], second[EXACT]) < 1e-3
    assert second["mean of the products, factored (svd)"] <= second["mean of the factors (fedavg)"]

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Floating-point operations as they are counted beside a count by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F


@pytest.mark.parametrize(("input_trains", "products"), [(False, 2), (True, 3)])
def test_a_linear_layer_takes_what_a_count_by_hand_says(benchmark, input_trains, products):
    layer, x = nn.Linear(7, 5), torch.randn(3, 7, requires_grad=input_trains)
    with benchmark("computation").counted() as counter:
        layer(x).sum().backward()
    assert counter.flops == products * 2 * 3 * 7 * 5  # forward, of the weight, and where it is needed of the input


def test_attention_counts_as_its_two_products(benchmark):
    q, k, v = torch.randn(3, 2, 4, 6, 8)  # (B, heads, T, d)
    with benchmark("computation").counted() as counter:
        F.scaled_dot_product_attention(q, k, v)
    assert counter.flops == 2 * (2 * 2 * 4 * 6 * 6 * 8)


@pytest.mark.slow
def test_a_round_with_fewer_layers_takes_less_and_scoring_is_apart(benchmark, small_settings, tmp_path):
    computation = benchmark("computation")
    whole, some = (
        computation.cost([*small_settings, "method.name=pfeiffer", "method.aggregation=fedavg", *more], tmp_path / name)
        for name, more in (("whole", ()), ("some", ("schedule.budget=1", *computation.F3OCUS)))
    )
    assert 0 < some.training <= whole.training
    assert (whole.scoring, whole.scoring_seconds) == (0, 0)
    assert some.scoring > 0
    assert some.scoring_seconds > 0
    assert 0 < some.sent < whole.sent
    assert whole.samples == some.samples == 16

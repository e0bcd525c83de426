# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Stacked factors give the mean of the products, whatever the sites' ranks, and grow only at their end."""

import math

import pytest
import torch

from fedpeft.alignment.factors import MAX_RANKS, extended, of_equal_rank
from fedpeft.alignment.low_rank import fitted, integrate_products, product_length, stack_products
from fedpeft.core.errors import FedpeftError
from fedpeft.server.rounds import StackedBroadcast
from fedpeft.server.update_check import update_length

OUTPUTS, INPUTS = 12, 10
A, B, OTHER = "layer.0.query.A", "layer.0.query.B", "layer.0.prompt.tokens"


def states(ranks, *, seed=0, place="layer.0.query"):
    draw = torch.Generator().manual_seed(seed)
    return [
        {
            f"{place}.A": torch.randn(rank, INPUTS, generator=draw),
            f"{place}.B": torch.randn(OUTPUTS, rank, generator=draw),
        }
        for rank in ranks
    ]


def product(state):
    return state[B].double() @ state[A].double()


def mean_of(some, counts):
    return sum(count * product(state) for state, count in zip(some, counts, strict=True)) / sum(counts)


@pytest.mark.parametrize("ranks", [(4,), (2, 2), (1, 4, 2)])
def test_a_stack_is_the_mean_of_the_products_and_its_rank_their_sum(ranks):
    some, counts = states(ranks), [3, 1, 2][: len(ranks)]
    merged, report = stack_products(some, counts)
    assert torch.allclose(product(merged), mean_of(some, counts), atol=1e-5)
    assert merged[A].shape[0] == sum(ranks)
    assert sum(row["weight"] for row in report["places"]["layer.0.query"].values()) == pytest.approx(1)


def test_rounds_add_up_and_the_adapter_never_outgrows_its_bound():
    total, merged = torch.zeros(OUTPUTS, INPUTS, dtype=torch.float64), None
    for number in range(9):
        some = states((3, 2), seed=number)
        total += mean_of(some, [1, 4])
        merged, _ = stack_products(some, [1, 4], previous=merged)
        assert merged[A].shape[0] <= MAX_RANKS * INPUTS
        assert torch.allclose(product(merged), total, atol=1e-4)


def test_a_place_that_nobody_sent_stays_and_other_tensors_are_averaged():
    some = states((2, 2))
    (kept,) = states((3,), place="layer.1.query")
    for number, state in enumerate(some):
        state[OTHER] = torch.full((2, 2), float(number))
    merged, _ = stack_products(some, [1, 1], previous={**some[0], **kept, OTHER: torch.zeros(2, 2)})
    assert all(torch.equal(merged[key], kept[key]) for key in kept)
    assert merged[OTHER].unique().tolist() == [0.5]


@pytest.mark.parametrize("ranks", [(4, 2), (1, 3, 2)])
def test_svd_of_unequal_ranks_is_the_best_of_the_largest_rank(ranks):
    some, counts = states(ranks), [3, 1, 2][: len(ranks)]
    merged, _ = integrate_products(some, counts)
    left, singular, right = torch.linalg.svd(mean_of(some, counts))
    best = left[:, : max(ranks)] * singular[: max(ranks)] @ right[: max(ranks)]
    assert torch.allclose(product(merged), best, atol=1e-5)


def test_svd_keeps_its_rank_when_the_widest_site_is_away_and_untrained_factors_stay_trainable():
    wide, narrow = states((4, 2))
    first, _ = integrate_products([wide, narrow], [1, 1])
    away, _ = integrate_products([narrow], [1], previous=first)
    assert away[A].shape[0] == 4
    assert torch.allclose(product(away), product(narrow), atol=1e-5)
    untrained = [{A: state[A], B: torch.zeros_like(state[B])} for state in (wide, narrow)]
    merged, _ = integrate_products(untrained, [1, 1])
    assert torch.allclose(merged[A][:2], (wide[A][:2] + narrow[A]) / 2)
    assert torch.equal(merged[A][2:], wide[A][2:])


@pytest.mark.parametrize("own", [1, 4, 6])
def test_a_site_loads_a_global_adapter_of_another_rank(own):
    (whole,), (like,) = states((4,)), states((own,), seed=1)
    got = fitted(whole, like)
    assert got[A].shape == like[A].shape
    if own >= 4:
        assert torch.allclose(product(got), product(whole), atol=1e-6)
        assert torch.equal(got[A][4:], like[A][4:])
    else:
        left, singular, right = torch.linalg.svd(product(whole))
        assert torch.allclose(product(got), left[:, :own] * singular[:own] @ right[:own], atol=1e-5)


def test_zeros_behind_shorter_factors_change_no_product():
    (first,), (second,) = states((4,)), states((2,), place="layer.1.query")
    equal = of_equal_rank({**first, **second})
    assert {tuple(equal[key].shape) for key in equal} == {(4, INPUTS), (OUTPUTS, 4)}
    before = second["layer.1.query.B"] @ second["layer.1.query.A"]
    assert torch.equal(equal["layer.1.query.B"] @ equal["layer.1.query.A"], before)


def test_the_length_of_an_update_is_that_of_its_products():
    (own,) = states((3,))
    total, count = product_length(own)
    assert (total, count) == (pytest.approx(float(product(own).square().sum())), OUTPUTS * INPUTS)
    assert update_length(own, {}, stacked=True) == pytest.approx(math.sqrt(total / count))


@pytest.mark.parametrize("seed", range(5))
def test_large_factors_that_cancel_in_their_product_are_no_short_update(seed):
    """In sums of squares their product is lost to rounding, and sites that compute it are off by far more."""
    draw = torch.Generator().manual_seed(seed)
    row, column = (torch.rand(shape, generator=draw) * 9e5 for shape in ((1, INPUTS), (OUTPUTS, 1)))
    other = row.clone()
    other[0, seed] += 0.0625
    lying = {A: torch.cat([row, other]), B: torch.cat([-column, column], dim=1)}
    whole = float(product(lying).norm())
    total, _ = product_length(lying)
    assert total > max(whole, float((lying[B] @ lying[A] - product(lying)).norm())) ** 2


@pytest.mark.parametrize("combine", [integrate_products, stack_products])
def test_what_a_site_may_send_in_float16_leaves_no_infinity(combine):
    largest = [{key: torch.full_like(tensor, 65_504.0).half() for key, tensor in one.items()} for one in states((4, 4))]
    merged = None
    for _ in range(6):  # beyond the bound factors are computed anew
        merged, _ = combine(largest, [1, 1], previous=merged)
        assert all(tensor.isfinite().all() for tensor in merged.values())


def test_a_site_that_follows_holds_the_same_bytes_as_the_server_and_is_sent_only_what_is_new():
    """One site follows every round, one misses some, through more rounds than the bound allows without factoring."""
    broadcast, held, merged, sizes = StackedBroadcast({}), {"near": {}, "far": {}}, None, []
    for number in range(12):
        orders = {}
        for site in ("near", "far") if number % 3 else ("near",):
            base, payload = broadcast.base(site), broadcast.payload(site)
            held[site] = extended(held[site], payload) if base else payload
            orders[site] = True
            assert held[site].keys() == broadcast.state.keys()
            assert all(torch.equal(held[site][key], tensor) for key, tensor in broadcast.state.items())
            if site == "near":
                sizes.append(payload[A].shape[0] if payload else 0)
        broadcast.confirm(orders)
        merged, _ = stack_products(states((3, 2), seed=number), [1, 4], previous=merged)
        broadcast.update(merged)
    assert set(sizes) == {0, 5, INPUTS}


def test_what_many_sites_lack_is_there_once():
    kept = []
    broadcast = StackedBroadcast({}, store=lambda state: kept.append(state) or state)
    merged = None
    for number in range(3):
        merged, _ = stack_products(states((3, 2), seed=number), [1, 4], previous=merged)
        broadcast.update(merged)
        payloads = [broadcast.payload(site) for site in ("one", "two", "three")]
        assert all(one[B] is payloads[0][B] for one in payloads)
        assert (len(kept), payloads[0][B].shape[1]) == (number + 1, 5)
        broadcast.confirm(dict.fromkeys(("one", "two", "three"), True))


def test_half_a_pair_of_factors_is_refused():
    (own,) = states((2,))
    with pytest.raises(FedpeftError, match="only the factor A"):
        extended(own, {A: own[A]})
    with pytest.raises(FedpeftError, match="different ranks"):
        extended(own, {A: own[A], B: own[B][:, :1]})


def test_a_site_does_not_let_its_factors_grow_without_end():
    (own,) = states((MAX_RANKS * min(INPUTS, OUTPUTS),))
    with pytest.raises(FedpeftError, match="are enough for any product: send the adapter whole"):
        extended(own, states((1,))[0])

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The common order of neurons: against all orders of small adapters, and what must hold at any size."""

import itertools

import numpy as np
import pytest
import torch
from grids import each
from samples import generator

from fedpeft.alignment.common_order import climb, common_order, in_order, problem_of, search
from fedpeft.core.errors import FedpeftError

PASSES = 20


def unrelated(sites, width, features, seed=0):
    return torch.randn(sites, width, features, generator=generator(seed))


def shuffled_copies(sites, width, features, noise, seed=0):
    """Copies of the same neurons with noise, in orders of their own, and the orders that undo these."""
    rng = generator(seed)
    start = torch.randn(width, features, generator=rng)
    copies = [start + noise * torch.randn(start.shape, generator=rng) for _ in range(sites)]
    orders = [torch.randperm(width, generator=rng) for _ in range(sites)]
    back = torch.stack([order.argsort() for order in orders])
    return torch.stack([copy[order] for copy, order in zip(copies, orders, strict=True)]), back


def spread(supports, orders, weights):
    """The weighted sum of squared distances to the mean, written down again."""
    ordered = [w * x[order].double() for w, x, order in zip(weights, supports, orders, strict=True)]
    mean = sum(ordered)
    return sum(w * float((x / w - mean).square().sum()) for w, x in zip(weights, ordered, strict=True))


def least_spread(supports, weights):
    """The smallest spread over all orders, by trying them."""
    _, width, _ = supports.shape
    every = [torch.tensor(order) for order in itertools.permutations(range(width))]
    first, second, third = (w * x.double() for w, x in zip(weights, supports, strict=True))
    rows = [torch.stack([x[order].flatten() for order in every]) for x in (second, third)]
    products = (rows[0] @ first.flatten())[:, None] + rows[1] @ first.flatten() + rows[0] @ rows[1].T
    squared = [float(x.double().square().sum()) for x in supports]
    length = 2 * float(products.max()) + sum(w * w * s for w, s in zip(weights, squared, strict=True))
    return sum(w * s for w, s in zip(weights, squared, strict=True)) - length


def shares(sites, seed=0):
    drawn = 0.1 + torch.rand(sites, generator=generator(seed))
    return (drawn / drawn.sum()).tolist()


@pytest.mark.slow
def test_of_all_orders_of_small_adapters_the_best_is_found():
    reached = []
    for case in range(120):
        supports = unrelated(3, 2 + case % 4, (1, 2, 4, 32)[case // 4 % 4], seed=case)
        weights = shares(3, seed=case) if case % 3 else [1 / 3] * 3
        found = common_order(list(supports), weights, PASSES)
        least = least_spread(supports, weights)
        assert found.spread(weights) == pytest.approx(spread(supports, found.orders, weights), rel=1e-4)
        assert found.spread(weights) >= least * (1 - 1e-5)
        reached.append(found.spread(weights) <= least * (1 + 1e-5))
    assert sum(reached) >= 0.98 * len(reached)


@pytest.mark.parametrize(("sites", "width", "features"), [(2, 8, 3), (3, 5, 16), (6, 24, 8), (10, 48, 32)])
def test_the_spread_never_rises_from_pass_to_pass(sites, width, features):
    supports, weights = unrelated(sites, width, features), shares(sites)
    problem = problem_of(supports, weights, range(sites))
    total = sum(w * float(x.square().sum()) for w, x in zip(weights, supports, strict=True))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        found = climb(problem, np.stack([rng.permutation(width) for _ in range(sites)]), PASSES)
        assert (np.diff(found.lengths) >= 0).all()
        assert total - found.lengths[-1] == pytest.approx(
            spread(supports, torch.from_numpy(found.orders), weights), rel=1e-4
        )
    by_passes = [search(problem, passes).lengths[-1] for passes in (1, 2, PASSES)]
    assert by_passes == sorted(by_passes)
    assert all(len(search(problem, passes).lengths) <= passes + 1 for passes in (1, 2, PASSES))


def test_at_the_end_no_site_has_a_better_order_for_the_mean_of_the_others():
    supports, weights = unrelated(5, 12, 8), shares(5)
    orders = common_order(list(supports), weights, PASSES).orders
    reached = spread(supports, orders, weights)
    for site, (one, other) in itertools.product(range(5), itertools.combinations(range(12), 2)):
        swapped = orders.clone()
        swapped[site, [one, other]] = orders[site, [other, one]]
        assert spread(supports, swapped, weights) >= reached * (1 - 1e-5)


@pytest.mark.parametrize("factor", [1e2, 1e4, 1e8, 1e16, 1e25])
def test_neurons_much_longer_than_others_leave_the_order_of_these_as_it_is(factor):
    supports, back = shuffled_copies(4, 16, 12, 0.05)
    longer = torch.ones(16)
    longer[:3] = torch.tensor([factor, factor, factor**0.5])
    scaled = torch.stack([x * longer[order.argsort()][:, None] for x, order in zip(supports, back, strict=True)])
    found = common_order(list(scaled), [0.25] * 4, PASSES)
    neurons = torch.stack([order.argsort()[taken] for order, taken in zip(back, found.orders, strict=True)])
    assert torch.equal(neurons, neurons[:1].expand_as(neurons))


@each("sites", range(2, 9))
@each("noise", [0.0, 2e-4, 0.01, 0.1, 0.5])
@each("features", [6, 200])
def test_shuffled_copies_come_back_whether_the_order_is_proven_or_searched(sites, noise, features):
    supports, back = shuffled_copies(sites, 16, features, noise)
    weights = [1 / sites] * sites
    found = common_order(list(supports), weights, PASSES)
    assert found.spread(weights) <= 1.0001 * spread(supports, back, weights) + 1e-9


@pytest.mark.parametrize(("noise", "features"), [(0.05, 200), (1.0, 8)])
def test_the_order_in_which_sites_are_listed_changes_nothing(noise, features):
    supports, _ = shuffled_copies(6, 16, features, noise)
    for weights in ([1 / 6] * 6, shares(6)):
        orders = common_order(list(supports), weights, PASSES).orders
        for seed in range(3):
            listed = torch.randperm(6, generator=generator(seed)).tolist()
            again = common_order([supports[k] for k in listed], [weights[k] for k in listed], PASSES).orders
            assert torch.equal(again, orders[listed])


def test_the_result_depends_on_the_function_of_each_site_and_not_on_its_order():
    supports, _ = shuffled_copies(4, 16, 12, 0.5)
    weights = shares(4)
    spreads = []
    for seed in range(3):
        orders = [torch.randperm(16, generator=generator(seed + k)) for k in range(4)]
        moved = [x[order] for x, order in zip(supports, orders, strict=True)]
        spreads.append(common_order(moved, weights, PASSES).spread(weights))
    assert spreads == pytest.approx([spreads[0]] * 3, rel=1e-4)


@pytest.mark.parametrize(
    "supports",
    [
        torch.zeros(3, 4, 5),
        torch.ones(3, 4, 5),
        torch.ones(3, 4, 5).cumsum(dim=0),  # equal neurons, different sites
        unrelated(1, 4, 5),
        unrelated(3, 1, 5),
        unrelated(1, 4, 5).expand(3, -1, -1),
        unrelated(1, 2, 5).repeat(3, 2, 1),  # every neuron twice
        1e4 + unrelated(1, 8, 5) + 0.01 * unrelated(3, 8, 5, seed=1),
    ],
)
def test_where_nothing_is_gained_nothing_moves(supports):
    weights = [1 / len(supports)] * len(supports)
    orders = common_order(list(supports), weights, PASSES).orders
    assert torch.equal(orders, torch.arange(supports.shape[1]).expand_as(orders))


def test_most_neurons_stay_where_they_are():
    start = unrelated(1, 8, 16)[0]
    turned = torch.arange(8).roll(1)
    sites = [start[turned], start, start]
    orders = common_order(sites, [0.4, 0.3, 0.3], PASSES).orders
    assert torch.equal(orders, torch.stack([turned.argsort(), torch.arange(8), torch.arange(8)]))
    outweighed = common_order(sites, [0.6, 0.2, 0.2], PASSES).orders
    assert torch.equal(outweighed, torch.stack([torch.arange(8), turned, turned]))


def test_values_whose_squares_overflow_float32_are_matched_and_infinity_is_refused():
    supports, back = shuffled_copies(3, 6, 4, 0.0)
    orders = common_order(list(1e30 * supports), [1 / 3] * 3, PASSES).orders
    assert spread(supports, orders, [1 / 3] * 3) == pytest.approx(spread(supports, back, [1 / 3] * 3), abs=1e-9)
    supports[1, 2, 3] = torch.inf
    with pytest.raises(FedpeftError, match="NaN or infinity"):
        common_order(list(supports), [1 / 3] * 3, PASSES)


def test_orders_are_taken_as_indices_of_the_neurons_that_come():
    supports = unrelated(2, 3, 2)
    orders = torch.tensor([[2, 0, 1], [0, 1, 2]])
    brought = in_order(list(supports), [0.5, 0.5], orders)
    assert torch.allclose(brought.mean, (supports[0][[2, 0, 1]] + supports[1]) / 2)

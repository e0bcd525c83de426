# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Plans: as cheap as POT's, with the right masses, and refused where they make no sense."""

import os

import ot
import pytest
import torch
from grids import each
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import PLACES, D, at, generator, hidden, same_bytes, state

from fedpeft.alignment import (
    PIASettings,
    align_global,
    align_upload,
    barycenter,
    cost_matrix,
    integrate,
    transport,
    transport_plan,
)
from fedpeft.alignment.common_order import common_order
from fedpeft.alignment.transport import compare, compare_each, match, permutation_of
from fedpeft.core.errors import FedpeftError

SIZES = [(1, 1), (8, 8), (48, 48), (5, 9), (9, 5), (12, 24), (48, 32)]


def uniform(n: int) -> torch.Tensor:
    return torch.full((n,), 1 / n, dtype=torch.float64)


def optimum(cost: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor) -> float:
    return float(ot.emd2(alpha.numpy(), beta.numpy(), cost.numpy()))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_plan_costs_what_pots_emd_costs(size, seed):
    cost = torch.rand(size, generator=generator(seed), dtype=torch.float64)
    plan = match(cost).plan
    assert float((plan * cost).sum()) == pytest.approx(optimum(cost, uniform(size[0]), uniform(size[1])), rel=1e-12)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(n=st.integers(1, 12), m=st.integers(1, 12), f=st.integers(1, 4), ties=st.booleans(), seed=st.integers(0, 2**16))
def test_plan_of_supports_costs_what_pots_emd_costs(n, m, f, ties, seed):
    rng = generator(seed)
    x, y = torch.randn(n, f, generator=rng), torch.randn(m, f, generator=rng)
    if ties:
        x, y = x.round(), y.round()
    cost, plan = cost_matrix(x, y), transport_plan(x, y)
    assert float((plan * cost).sum()) == pytest.approx(optimum(cost, uniform(n), uniform(m)), rel=1e-9, abs=1e-12)


@each("solver", ["exact", "sinkhorn"])
@each("size", SIZES)
@each("weighted", [False, True])
def test_marginals_are_the_masses(solver, size, weighted):
    rng = generator(1)
    x, y = torch.randn(size[0], 6, generator=rng), torch.randn(size[1], 6, generator=rng)
    alpha, beta = (torch.rand(n, generator=rng, dtype=torch.float64) + 0.1 for n in size)
    masses = {"client_mass": alpha, "reference_mass": beta} if weighted else {}
    plan = transport_plan(x, y, solver=solver, regularization=0.1, **masses)
    alpha, beta = (alpha / alpha.sum(), beta / beta.sum()) if weighted else (uniform(size[0]), uniform(size[1]))
    tolerance = 1e-12 if solver == "exact" else 1e-5
    assert plan.dtype == torch.float64
    assert plan.shape == size
    assert bool((plan >= 0).all())
    torch.testing.assert_close(plan.sum(dim=1), alpha, rtol=0, atol=tolerance)
    torch.testing.assert_close(plan.sum(dim=0), beta, rtol=0, atol=tolerance)
    if weighted and solver == "exact":
        assert float((plan * cost_matrix(x, y)).sum()) == pytest.approx(optimum(cost_matrix(x, y), alpha, beta))


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 12),
    f=st.integers(1, 6),
    apart=st.sampled_from([0.0, 1e-7, 1e-4, 0.1, 0.5, 2.0]),
    offset=st.sampled_from([0.0, 1.0, 1e4]),
    scale=st.sampled_from([1e-25, 1e-18, 1.0, 1e18, 1e25]),
    ties=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_nearest_neurons_give_what_the_search_over_all_plans_gives(n, f, apart, offset, scale, ties, seed):
    rng = generator(seed)
    y = torch.randn(n, f, generator=rng)
    y = (y.round() if ties else y) + offset
    clients = [y[torch.randperm(n, generator=rng)] + apart * torch.randn(n, f, generator=rng) for _ in range(3)]
    clients, y = [client * scale for client in clients], y.double() * scale
    for client, found in zip(clients, compare_each(clients, y), strict=True):
        cost = torch.cdist(client.double(), y, compute_mode="donot_use_mm_for_euclid_dist")
        stands, best = cost.diagonal().mean(), optimum(cost / scale, uniform(n), uniform(n)) * scale
        assert found.before == pytest.approx(float(stands), rel=1e-6, abs=1e-9 * scale)
        assert found.after == pytest.approx(best, rel=1e-6, abs=1e-9 * scale)
        assert found.matching.distance(cost) == pytest.approx(best, rel=1e-9, abs=1e-12 * scale)


def test_a_reference_whose_squares_float32_cannot_hold_proves_nothing(monkeypatch):
    searched, match = [], transport.match
    monkeypatch.setattr(transport, "match", lambda *args, **kwargs: searched.append(1) or match(*args, **kwargs))
    y = 1e-24 * torch.ones(2, 64, dtype=torch.float64)
    y[1] *= 1 + 1e-6
    x = 1e3 * torch.rand(64, generator=generator(0))
    compare(torch.stack([x, -x]), y)  # each is nearer to another one, by less than float32 tells
    assert searched


def test_nearest_neurons_need_no_search_where_sites_drifted_from_one_start(monkeypatch):
    def search(*_, **__):
        raise AssertionError("searched")

    rng = generator(4)
    start = torch.randn(48, 96, generator=rng)
    clients = [start + 0.1 * torch.randn(48, 96, generator=rng) for _ in range(3)]
    mean = torch.stack(clients).double().mean(dim=0)
    monkeypatch.setattr(transport, "match", search)
    for found in compare_each([client[:32] for client in clients], mean[:32]):
        assert torch.equal(found.matching.order, torch.arange(32))
    with pytest.raises(AssertionError, match="searched"):
        compare(start.roll(1, dims=1), mean)


@each("value", [float("nan"), float("inf"), -float("inf")])
@each("side", [0, 1])
@each("n", [1, 4])
def test_neurons_that_are_not_finite_have_no_nearest(n, side, value):
    sides = [torch.eye(4)[:n], torch.eye(4)[:n]]
    sides[side][n - 1, 0] = value
    with pytest.raises(FedpeftError, match="the supports hold NaN or infinity"):
        compare(*sides)


def test_sinkhorn_approaches_the_exact_cost_from_above():
    rng = generator(2)
    x, y = torch.randn(16, 8, generator=rng), torch.randn(16, 8, generator=rng)
    cost = cost_matrix(x, y)
    exact = float((transport_plan(x, y) * cost).sum())
    costs = [float((transport_plan(x, y, solver="sinkhorn", regularization=r) * cost).sum()) for r in (1.0, 0.1, 0.01)]
    assert costs == sorted(costs, reverse=True)
    assert exact - 1e-6 <= costs[-1] <= 1.01 * exact


def test_sinkhorn_of_identical_neurons_spreads_them_evenly():
    plan = transport_plan(torch.ones(3, 2), torch.ones(3, 2), solver="sinkhorn")
    torch.testing.assert_close(plan, torch.full((3, 3), 1 / 9, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:Numerical errors")
def test_sinkhorn_with_too_little_entropy_says_so():
    rng = generator(8)
    x, y = torch.randn(16, 8, generator=rng), torch.randn(16, 8, generator=rng)
    with pytest.raises(FedpeftError, match="regularization=1e-09: raise it or use solver='exact'"):
        transport_plan(x, y, solver="sinkhorn", regularization=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_scalar_supports_are_sorted_and_cost_what_the_assignment_costs(seed):
    rng = generator(seed)
    x, y = torch.randn(32, 1, generator=rng), torch.randn(32, 1, generator=rng)
    cost = cost_matrix(x, y)
    plan = transport_plan(x, y)
    assert float((plan * cost).sum()) == pytest.approx(match(cost).distance(cost), rel=1e-12)
    order = permutation_of(plan)
    assert torch.equal(x[order, 0].argsort(), y[:, 0].argsort())


@pytest.mark.parametrize("bias", [None, 0.0, 2.5])
def test_neurons_on_a_line_are_sorted_also_with_known_distances(bias):
    rng = generator(3)
    x, y = torch.randn(32, 1, generator=rng), torch.randn(32, 1, generator=rng)
    if bias is not None:
        x, y = (torch.cat([side, torch.full((32, 1), bias)], dim=1) for side in (x, y))
    matching = compare(x, y).matching
    assert torch.equal(x[matching.order, 0].argsort(), y[:, 0].argsort())


@each("sizes", [(12, 24), (24, 12), (5, 9)])
@each("exponent", [-300, -200, -40, -20, -14, -11, 0, 20, 200, 300])
@each("weighted", [False, True])
def test_the_scale_of_the_supports_does_not_change_the_plan(sizes, exponent, weighted):
    rng = generator(5)
    x, y = (torch.randn(n, 6, generator=rng, dtype=torch.float64) for n in sizes)
    masses = {"client_mass": torch.full((sizes[0],), 1e308, dtype=torch.float64)} if weighted else {}
    cost = torch.cdist(x, y)
    plan = transport_plan(x * 10.0**exponent, y * 10.0**exponent, **masses)
    assert float((plan * cost).sum()) == pytest.approx(optimum(cost, *map(uniform, sizes)), rel=1e-9)


@pytest.mark.parametrize("factor", [1e3, 1e8, 1e16, 1e30])
@pytest.mark.parametrize("wider", [0, 12])
def test_a_neuron_far_from_all_others_leaves_their_matches_as_they_are(factor, wider):
    rng = generator(6)
    x = torch.randn(12, 6, generator=rng, dtype=torch.float64)
    order = torch.randperm(12, generator=rng)
    y = x[order] + 0.01 * torch.randn(12, 6, generator=rng, dtype=torch.float64)
    y = torch.cat([y, y[:wider] + 0.001])  # each neuron's two halves have one place each
    plan = transport_plan(x, y)
    x[order[0]] *= factor
    y[::12] *= factor
    torch.testing.assert_close(transport_plan(x, y), plan, rtol=0, atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_cost_is_the_euclidean_distance_even_of_close_neurons_far_from_zero(offset):
    rng = generator(3)
    y = torch.randn(24, 48, generator=rng, dtype=torch.float64) + offset
    x = y[torch.randperm(24, generator=rng)] + 1e-4 * torch.randn(24, 48, generator=rng, dtype=torch.float64)
    direct = (x[:, None] - y[None]).square().sum(dim=2).sqrt()
    torch.testing.assert_close(cost_matrix(x, y), direct, rtol=1e-6, atol=0)


def test_permutation_is_found_exactly_where_there_is_one():
    order = torch.randperm(49, generator=generator(4))
    neurons = torch.randn(49, 5, generator=generator(5))
    assert torch.equal(neurons[permutation_of(transport_plan(neurons, neurons[order]))], neurons[order])
    assert permutation_of(transport_plan(neurons, neurons[:30])) is None
    assert permutation_of(torch.tensor([[0.5, 0.5], [0.0, 0.0]])) is None


def test_parameters_and_arrays_are_taken_as_they_come():
    x, y = torch.randn(5, 3, generator=generator(9)), torch.randn(5, 3, generator=generator(10))
    plan = transport_plan(x, y)
    assert torch.equal(transport_plan(torch.nn.Parameter(x), y.requires_grad_()), plan)
    assert torch.equal(transport_plan(x.numpy(), y.detach().numpy()), plan)


def test_identity_moves_nothing():
    x, y = torch.randn(7, 3, generator=generator(6)), torch.randn(7, 3, generator=generator(7))
    assert torch.equal(permutation_of(transport_plan(x, y, solver="identity")), torch.arange(7))


def test_pot_is_imported_without_leaving_traces_in_the_environment():
    before = dict(os.environ)
    transport_plan(torch.eye(3), torch.eye(3)[:2])
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("client", "reference", "options", "message"),
    [
        (torch.ones(3), torch.ones(3, 1), {}, r"shapes \(3,\) and \(3, 1\)"),
        (torch.ones(3, 2), torch.ones(3, 4), {}, r"shapes \(3, 2\) and \(3, 4\)"),
        (torch.ones(0, 2), torch.ones(3, 2), {}, r"shapes \(0, 2\)"),
        (torch.full((2, 2), float("nan")), torch.ones(2, 2), {}, "NaN or infinity"),
        (torch.full((2, 2), float("inf")), torch.ones(2, 2), {}, "NaN or infinity"),
        (torch.ones(2, 2), torch.ones(2, 2), {"client_mass": torch.tensor([1.0, 0.0])}, "client_mass is .* positive"),
        (torch.ones(2, 2), torch.ones(2, 2), {"reference_mass": torch.ones(3)}, "reference_mass is .* 2 positive"),
        (torch.ones(2, 2), torch.ones(3, 2), {"solver": "identity"}, "cannot map 2 neurons to 3"),
        (torch.ones(2, 2), torch.ones(2, 2), {"solver": "greedy"}, "solver is 'greedy', allowed are exact"),
    ],
)
def test_what_has_no_plan_is_refused_in_words(client, reference, options, message):
    with pytest.raises(FedpeftError, match=message):
        transport_plan(client, reference, **options)


@pytest.mark.parametrize("regularization", [-0.3, 0, float("nan"), float("inf")])
def test_a_regularization_out_of_range_is_refused(regularization):
    with pytest.raises(FedpeftError, match=r"regularization is .*, it must be a finite number above 0\."):
        transport_plan(torch.eye(3), torch.eye(3), solver="sinkhorn", regularization=regularization)


def test_masses_may_require_gradients():
    mass = torch.tensor([2.0, 1.0, 1.0], requires_grad=True)
    plan = transport_plan(torch.eye(3), torch.eye(3), client_mass=mass)
    torch.testing.assert_close(plan.sum(dim=1), torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64))


def calls(kind, chosen):
    """By function what calls it: with adapters of three sites, and with their neurons alone."""
    states = [state(kind, generator(seed)) for seed in range(3)]
    tables, inputs = [at(one, PLACES[0]) for one in states], torch.randn(24, D, generator=generator(3))
    seen = [{place: hidden(kind, at(one, place), inputs) for place in PLACES} for one in states[:2]]
    supports = [torch.randn(12, 6, generator=generator(seed)) for seed in range(3)]
    return {
        "integrate": lambda: integrate(states, [3, 1, 2], chosen)[0],
        "barycenter": lambda: barycenter(tables, **vars(chosen)),
        "align_global": lambda: align_global(*states[:2], seen, chosen)[0],
        "align_upload": lambda: align_upload(*states[:2], chosen),
        "transport_plan": lambda: {"plan": transport_plan(*supports[:2], solver=chosen.solver)},
        "compare": lambda: {"plan": compare(*supports[:2], solver=chosen.solver).matching.plan},
        "common_order": lambda: common_order(supports, [0.5, 0.2, 0.3], 20)._asdict(),
    }


@each("changes", [{}, {"reference": "fixed_point"}, {"solver": "sinkhorn"}, {"output_axis": "matched"}])
def test_autocast_changes_no_bit(kind, changes):
    for name, call in calls(kind, PIASettings(**changes)).items():
        expected = call()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = call()
        assert same_bytes(found, expected), name

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Robust averages against numpy, scipy and brute force, and how far one arbitrary member moves them."""

import numpy as np
import pytest
import torch
from grids import each
from samples import PLACES, generator, noisy, state
from scipy.optimize import minimize
from scipy.stats import trim_mean

from fedpeft.alignment import PIASettings, RobustSettings, integrate
from fedpeft.alignment.averaging import cap_share, fedavg_weights, pia_weights, robust_row
from fedpeft.alignment.low_rank import integrate_products, stack_products
from fedpeft.alignment.settings import AVERAGES, MEAN
from fedpeft.core.errors import FedpeftError

ROBUST = [name for name in AVERAGES if name != MEAN]


def by_median(rows, _):
    return np.median(rows, axis=0)


def by_trimmed_mean(rows, attackers):
    return trim_mean(rows, attackers / len(rows), axis=0)


def krum_scores(rows, attackers):
    scores = []
    for i, row in enumerate(rows):
        distances = sorted(float(((row - other) ** 2).sum()) for j, other in enumerate(rows) if j != i)
        scores.append(sum(distances[: len(rows) - attackers - 2]))
    return np.array(scores)


def by_krum(rows, attackers):
    return rows[krum_scores(rows, attackers).argmin()]


def by_multi_krum(rows, attackers):
    return rows[krum_scores(rows, attackers).argsort()[: len(rows) - attackers]].mean(axis=0)


def by_geometric_median(rows, _):
    def cost(point):
        return np.linalg.norm(rows - point, axis=1).sum()

    return minimize(cost, rows.mean(axis=0), method="BFGS", options={"gtol": 1e-9}).x


INDEPENDENT = {
    "median": by_median,
    "trimmed_mean": by_trimmed_mean,
    "krum": by_krum,
    "multi_krum": by_multi_krum,
    "geometric_median": by_geometric_median,
}


@each(("count", "attackers"), [(5, 1), (6, 1), (9, 2), (7, 2), (8, 0)])
@each("rule", ROBUST)
def test_a_robust_average_is_what_another_way_of_computing_it_gives(rule, count, attackers):
    rows = torch.randn(count, 6, generator=generator(count), dtype=torch.float64)
    ours = robust_row(rows, RobustSettings(average=rule, attackers=attackers))
    np.testing.assert_allclose(ours, INDEPENDENT[rule](rows.numpy(), attackers), atol=2e-5)


AT_A_ROW = {  # rows, and where the sum of distances to them is least
    "median is a row": ([[0.0, 0.0], [10.0, -1.0], [-1.0, 10.0]], None),
    "the row is the best": ([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.5], [-1.0, -0.5]], [0.0, 0.0]),
    "most rows are one": ([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [9.0, 7.0], [-3.0, 5.0]], [1.0, 2.0]),
    "all rows are one": ([[1.0, 2.0]] * 3, [1.0, 2.0]),
    "two rows at the median": ([[0.0, 0.0], [0.0, 0.0], [9.0, -1.0], [8.0, -2.0], [-1.0, 9.0], [-1.0, 8.0]], None),
}


@pytest.mark.slow
@each("scale", [1e-30, 1e-12, 1.0, 1e12, 1e30])
@each("name", AT_A_ROW)
def test_the_geometric_median_leaves_a_row_that_is_not_the_best_point(name, scale):
    rows, best = AT_A_ROW[name]
    rows = np.array(rows)
    if best is None:
        start = rows.mean(axis=0) + 0.1
        options = {"xatol": 1e-10, "fatol": 1e-12}
        best = minimize(
            lambda p: np.linalg.norm(rows - p, axis=1).sum(), start, method="Nelder-Mead", options=options
        ).x
    ours = robust_row(torch.from_numpy(rows * scale), RobustSettings(average="geometric_median")).numpy() / scale
    np.testing.assert_allclose(ours, best, atol=1e-5)


def test_the_median_of_the_largest_numbers_is_finite():
    rows = torch.full((2, 3), torch.finfo(torch.float32).max)
    assert torch.equal(robust_row(rows, RobustSettings(average="median")), rows[0])


@pytest.mark.parametrize("rule", ROBUST)
def test_the_order_of_the_members_does_not_matter(rule):
    rows = torch.randn(7, 5, generator=generator(), dtype=torch.float64)
    settings = RobustSettings(average=rule, attackers=2)
    other = rows[torch.randperm(7, generator=generator(1))]
    torch.testing.assert_close(robust_row(rows, settings), robust_row(other, settings))


@each("rule", ROBUST)
@each("sent", [1e6, -1e6, 3.0, 0.0])
def test_one_arbitrary_member_moves_it_less_than_the_others_lie_apart(rule, sent):
    honest = torch.randn(4, 50, generator=generator(2), dtype=torch.float64)
    rows = torch.cat([honest, torch.full((1, 50), sent, dtype=torch.float64)])
    moved = robust_row(rows, RobustSettings(average=rule)) - honest.mean(dim=0)
    assert float(moved.norm()) < float(torch.pdist(honest).max())


@pytest.mark.parametrize(("rule", "count"), [("trimmed_mean", 2), ("krum", 4), ("multi_krum", 4)])
def test_with_too_few_members_the_median_is_taken(rule, count):
    rows = torch.randn(count, 5, generator=generator(), dtype=torch.float64)
    np.testing.assert_allclose(robust_row(rows, RobustSettings(average=rule)), by_median(rows.numpy(), 1))


ATTACKS = {
    "noise": lambda tensor, rng: tensor + 10 * torch.randn(tensor.shape, generator=rng),
    "sign flips": lambda tensor, rng: -10 * tensor,
    "scaled": lambda tensor, rng: 1e5 * tensor,
}


def distance(a, b):
    return float(torch.stack([(a[key] - b[key]).double().square().sum() for key in b]).sum().sqrt())


@pytest.mark.slow
@each("attack", ATTACKS)
@each("aligned", [True, False])
@each("rule", ROBUST)
def test_with_a_robust_average_pia_and_fedavg_stay_near_the_honest_sites(rule, aligned, kind, attack):
    rng = generator(3)
    base = state(kind, rng)
    honest = [noisy(base, rng) for _ in range(4)]
    attacked = {key: ATTACKS[attack](tensor, rng) for key, tensor in base.items()}
    settings = PIASettings(server=aligned)
    sent, counts = [*honest, attacked], [5, 5, 5, 5, 1000]
    robust, report = integrate(sent, counts, settings, robust=RobustSettings(average=rule))
    plain, _ = integrate(sent, counts, settings)
    spread = max(distance(a, base) for a in honest)
    assert distance(robust, base) <= 2 * spread
    if not aligned:  # PIA's weights fall with the distance, as far as gamma goes
        assert distance(plain, base) > 20 * spread
    assert all(row["weight"] is None for row in report["sites"].values())


def test_layers_that_some_sites_send_are_averaged_over_those():
    rng = generator(4)
    previous = state("houlsby", rng)
    layer = {key for key in previous if key.startswith(PLACES[0])}
    few = [{key: tensor + k for key, tensor in previous.items() if key in layer} for k in range(3)]
    merged, _ = integrate(
        few, [1, 1, 1], PIASettings(server=False), previous=previous, robust=RobustSettings(average="median")
    )
    assert all(torch.equal(merged[key], previous[key] + (key in layer)) for key in previous)


@pytest.mark.parametrize("reference", ["largest", "fixed_point"])
def test_a_robust_average_takes_no_reference_that_one_site_can_lead(reference):
    states = [state("houlsby", generator(seed)) for seed in range(3)]
    with pytest.raises(FedpeftError, match=f"reference='{reference}' can follow one site"):
        integrate(states, [1, 1, 1], PIASettings(reference=reference), robust=RobustSettings(average="median"))


@pytest.mark.parametrize(
    ("counts", "most", "expected"),
    [
        ([5, 5, 5], 0.5, [5, 5, 5]),
        ([50, 30, 20], 0.5, [50, 30, 20]),
        ([10**12, 5, 5], 0.5, [10, 5, 5]),
        ([90, 10], 0.5, [10, 10]),
        ([90, 10], 1, [90, 10]),
        ([100, 100, 1], 0.4, [2, 2, 1]),
        ([1, 2, 3, 4], 0.01, [1, 1, 1, 1]),
        ([7], 0.5, [7]),
    ],
)
def test_no_site_has_more_than_its_share(counts, most, expected):
    assert cap_share(counts, most) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"average": "mode"}, "average is 'mode', allowed are mean, median"),
        ({"attackers": -1}, "attackers is -1"),
        ({"max_share": 0}, "max_share is 0"),
        ({"max_share": 2}, "max_share is 2, it must be at most 1"),
        ({"update_factor": 1}, "update_factor is 1, which would refuse every second site"),
        ({"update_factor": float("nan")}, "update_factor is nan"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(FedpeftError, match=message):
        RobustSettings(**changes)


def test_counts_whose_sum_overflows_weigh_by_their_proportions():
    assert fedavg_weights([1e308, 1e308, 5e307], PIASettings()) == pytest.approx([0.4, 0.4, 0.2])
    assert pia_weights([1e308, 1e308], [3.0, 3.0], PIASettings()) == pytest.approx([0.5, 0.5])
    capped = cap_share([1.5e308, 1e307, 1e307], 0.5)
    assert capped[0] == pytest.approx(capped[1] + capped[2])


@pytest.mark.parametrize("integrate", [integrate, integrate_products, stack_products])
def test_the_largest_share_of_a_site_holds_in_every_layer_for_the_sites_that_sent_it(integrate):
    def layers(*numbers):
        return {f"layer.{n}.query.{name}": torch.ones(2, 2) for n in numbers for name in "AB"}

    states, counts = [layers(0), layers(0), *[layers(1)] * 8], [10**6, *[100] * 9]
    sites = [f"site-{number}" for number in range(10)]
    _, report = integrate(states, counts, sites=sites, previous=layers(0, 1), robust=RobustSettings(max_share=0.5))
    weights = {site: figures["weight"] for site, figures in report["places"]["layer.0.query"].items()}
    assert weights == {"site-0": 0.5, "site-1": 0.5}

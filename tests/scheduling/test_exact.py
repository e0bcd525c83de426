# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The exact front equals the one by enumeration of all assignments; both methods agree."""

import numpy as np
import pytest
from grids import each
from instances import ODD, enumerated, hull, realistic, small

from fedpeft.core.errors import FedpeftError
from fedpeft.scheduling import exact_front, schedule
from fedpeft.scheduling.exact import ExactSettings


def assert_same(front, points):
    assert front.variance == pytest.approx(list(points), abs=1e-8)
    assert front.importance == pytest.approx(list(points.values()), rel=1e-8, abs=1e-8)


@pytest.mark.slow
@each("seed", range(30))
def test_supported_points_are_those_of_full_enumeration(seed):
    scores, budgets = small(seed)
    points = hull(enumerated(scores, budgets))
    assert_same(exact_front(scores, budgets), points)
    assert_same(schedule(scores, budgets, solver="exact", method="linear_program"), points)


@pytest.mark.slow
@each("seed", range(30))
def test_full_front_is_that_of_full_enumeration(seed):
    scores, budgets = small(seed)
    assert_same(exact_front(scores, budgets, full=True), enumerated(scores, budgets))


@pytest.mark.slow
def test_the_small_instances_are_not_too_easy():
    fronts = [enumerated(*small(seed)) for seed in range(30)]
    assert sum(len(front) > len(hull(front)) for front in fronts) >= 5
    assert sum(len(hull(front)) > 3 for front in fronts) >= 5


@pytest.mark.parametrize("name", [name for name in ODD if name != "huge and tiny scores"])
def test_odd_instances_are_those_of_full_enumeration(name):
    scores, budgets = ODD[name]
    assert_same(exact_front(scores, budgets), hull(enumerated(scores, budgets)))
    assert_same(exact_front(scores, budgets, full=True), enumerated(scores, budgets))


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "layers"), [(10, 12), (6, 32), (25, 8)])
@pytest.mark.parametrize("unequal", [False, True])
def test_shortest_paths_and_linear_programs_agree(clients, layers, unequal):
    scores, budgets = realistic(clients, layers, seed=clients)
    if unequal:
        budgets = np.random.default_rng(1).integers(0, layers + 1, clients)
    paths = exact_front(scores, budgets)
    programs = schedule(scores, budgets, solver="exact", method="linear_program")
    assert len(paths) > 3
    assert paths.variance == pytest.approx(programs.variance)
    assert paths.importance == pytest.approx(programs.importance, rel=1e-9)


@pytest.mark.slow
def test_hull_runs_from_the_best_balanced_to_the_most_important():
    scores, budgets = realistic(100, 32, seed=0)
    front = exact_front(scores, budgets)
    counts = front.masks[0].sum(axis=0)
    assert counts.max() - counts.min() <= 1
    assert front.importance[-1] == pytest.approx(np.sort(scores, axis=1)[:, -4:].sum())
    slopes = np.diff(front.importance) / np.diff(front.variance)
    assert (np.diff(slopes) < 0).all()


@pytest.mark.parametrize(
    ("settings", "message"), [({"full": 1}, "full is 1"), ({"method": "guess"}, "method is 'guess'")]
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(FedpeftError, match=message):
        ExactSettings(**settings)

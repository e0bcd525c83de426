# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Dominance, choice and hypervolume, beside brute force and pymoo."""

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from pymoo.indicators.hv import HV

from fedpeft.core.errors import FedpeftError
from fedpeft.scheduling import Front, choose, hypervolume, nadir, schedule
from fedpeft.scheduling.front import Archive, non_dominated
from fedpeft.scheduling.problem import build_problem


def front(*points):
    """A front with the given (importance, variance); the k-th mask trains layer k alone."""
    importance, variance = (np.array(values, dtype=float) for values in zip(*points, strict=True))
    masks = np.eye(len(points), dtype=bool)[:, None]
    return Front(masks=masks, importance=importance, variance=variance, evaluations=len(points))


def chosen(*args):
    return int(choose(*args)[0].argmax())


FOUR = front((1, 0), (5, 1), (8, 4), (9, 9))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((1, 0), 3), ((0, 1), 0), ((1, 1), 2), ((1, 2), 1), ((10, 1), 3), ((2, 2), 2), ((0.5, 5), 0)],
)
def test_choice_weighs_scaled_objectives(weights, expected):
    assert chosen(FOUR, *weights) == expected


def test_choice_does_not_depend_on_units():
    scaled = front((1001, 0), (1005, 100), (1008, 400), (1009, 900))
    assert [chosen(scaled, 1, w) for w in (0, 0.3, 1, 2)] == [chosen(FOUR, 1, w) for w in (0, 0.3, 1, 2)]


def test_of_equally_good_assignments_the_most_balanced_is_chosen():
    assert chosen(front((0, 0), (1, 1)), 1, 1) == 0


def test_a_front_of_one_has_one_choice():
    assert chosen(front((3, 2)), 1, 1) == 0


@pytest.mark.parametrize("weights", [(-1, 1), (1, -1), (float("nan"), 1), (1, float("inf")), (0, 0)])
def test_bad_weights_are_refused(weights):
    with pytest.raises(FedpeftError, match="weight_"):
        choose(FOUR, *weights)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("levels", [4, 1000])
def test_non_dominated_agrees_with_brute_force(seed, levels):
    importance, variance = np.random.default_rng(seed).integers(0, levels, (2, 60)).astype(float)
    kept = non_dominated(importance, variance)
    better = (importance[:, None] >= importance) & (variance[:, None] <= variance)
    strictly = better & ((importance[:, None] > importance) | (variance[:, None] < variance))
    expected = {(importance[k], variance[k]) for k in np.flatnonzero(~strictly.any(axis=0))}
    assert [(importance[k], variance[k]) for k in kept] == sorted(expected)


def test_gains_within_the_resolution_are_none():
    importance = np.array([1.0, 1.0 + 1e-12, 1.0 + 2e-12, 2.0])
    assert non_dominated(importance, np.arange(4.0), resolution=1e-9).tolist() == [0, 3]
    assert non_dominated(importance, np.arange(4.0)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("reference", [(0.0, 10.0), (1.0, 9.0), (4.0, 5.0), (9.5, 1.0), (-3.0, 20.0)])
def test_hypervolume_agrees_with_pymoo(reference):
    points = np.column_stack([-FOUR.importance, FOUR.variance])
    expected = HV(ref_point=np.array([-reference[0], reference[1]]))(points)
    assert hypervolume(FOUR, reference) == pytest.approx(expected)


def test_nadir_leaves_both_ends_without_area():
    assert nadir(FOUR) == (1.0, 9.0)
    assert hypervolume(FOUR, nadir(FOUR)) == hypervolume(front((5, 1), (8, 4)), nadir(FOUR)) == 4 * 3 + 7 * 5


def test_archive_keeps_the_non_dominated_of_all_batches_and_counts():
    scores = np.random.default_rng(0).random((4, 5))
    problem = build_problem(scores, [2, 2, 2, 2])
    archive = Archive(problem)
    rng = np.random.default_rng(1)
    batches = [np.argsort(np.argsort(rng.random((30, 4, 5)))) < 2 for _ in range(4)]
    evaluated = [archive.evaluate(batch) for batch in batches]
    importance, variance = (np.concatenate(values) for values in zip(*evaluated, strict=True))
    kept = non_dominated(importance, variance, resolution=problem.resolution)
    assert archive.evaluations == 120
    assert archive.front().importance.tolist() == importance[kept].tolist()
    assert [scores[mask].sum() for mask in archive.masks] == pytest.approx(importance[kept].tolist())


def test_front_cannot_be_changed_by_assignment():
    result = schedule(np.ones((2, 3)), [1, 1], solver="exact")
    with pytest.raises(AttributeError):
        result.evaluations = 0


def test_a_front_is_described_in_one_line_without_its_masks():
    scores = np.random.default_rng(0).random((10, 12))
    result = schedule(scores, 4, solver="exact")
    text = repr(result)
    assert text.startswith(f"Front({len(result)} assignments of 10 clients to 12 layers, importance ")
    assert len(text) < 150
    assert "\n" not in text
    assert "array" not in text


def test_a_front_draws_itself_on_the_axes_of_the_caller():
    axes = Figure().subplots()
    assert FOUR.plot(axes, label="exact") is axes
    assert axes.lines[0].get_xydata().tolist() == [[1, 0], [5, 1], [8, 4], [9, 9]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("importance", "variance")
    assert axes.lines[0].get_label() == "exact"


def test_a_front_makes_a_figure_of_its_own(monkeypatch):
    monkeypatch.setattr(pyplot, "subplots", lambda: (None, Figure().subplots()))
    assert len(FOUR.plot().lines) == 1


def test_the_chosen_assignment_is_a_copy():
    made = front((1, 0), (5, 1))
    choose(made)[:] = False
    assert made.masks.any(axis=(1, 2)).all()

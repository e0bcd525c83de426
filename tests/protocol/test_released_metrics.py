# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Accuracies and losses are no oracle: rounded, of no small group, once for each round."""

import pytest

from fedpeft.core.errors import LocalError
from fedpeft.protocol.outgoing_reply import (
    METRICS_FILE,
    first_of_round,
    first_scores_of_round,
    released_metrics,
    rounded_count,
)

MEASURED = {"overall": 0.61234, "open": 0.51234, "closed": 0.71234, "loss": 1.23456, "loss_first": 123.456}
ROUNDED = {"overall": 0.61, "open": 0.51, "closed": 0.71, "loss": 1.23, "loss_first": 123.0}
NO_GROUPS = {**ROUNDED, "open": None, "closed": None}


@pytest.mark.parametrize(
    ("count", "rounded"), [(0, 0), (1, 10), (18, 20), (104, 100), (1234, 1200), (1250, 1300), (99_499, 99_000)]
)
def test_numbers_of_samples_are_rounded_to_two_digits_and_to_tens_at_least(count, rounded):
    assert rounded_count(count) == rounded


@pytest.mark.parametrize(
    ("questions", "expected"),
    [
        ({"open": 10, "closed": 10}, ROUNDED),
        ({"open": 90, "closed": 9}, NO_GROUPS),
        ({"open": 1, "closed": 99}, NO_GROUPS),
        ({"open": 9, "closed": 9}, NO_GROUPS),
        ({"open": 0, "closed": 99}, ROUNDED),
    ],
)
def test_a_small_group_takes_the_other_with_it(questions, expected):
    assert released_metrics(MEASURED, questions, min_questions=10) == expected


@pytest.mark.parametrize(("closed", "expected"), [(10, 1.0), (9, None), (0, 1.0)])
def test_what_tells_of_a_small_groups_commonest_answer_goes_with_it(closed, expected):
    measured = {"overall": 0.612, "below_constant": 1.0}
    released = released_metrics(measured, {"open": 90, "closed": closed}, min_questions=10)
    assert released == {"overall": 0.61, "below_constant": expected}


@pytest.mark.parametrize(("enough", "expected"), [(True, 0.71), (False, None)])
def test_a_small_validation_split_is_not_reported(enough, expected):
    measured = {"overall": 0.612, "validation": 0.7149}
    released = released_metrics(measured, {"open": 90, "closed": 90}, min_questions=10, enough_validation=enough)
    assert released == {"overall": 0.61, "validation": expected}


@pytest.mark.parametrize(("enough", "expected"), [(True, 0.714), (False, None)])
def test_losses_on_a_small_probe_are_not_reported(enough, expected):
    measured = {"loss": 0.61234, "loss_start": 0.71449, "loss_end": 0.71351}
    released = released_metrics(measured, {}, min_questions=10, enough_probe=enough)
    assert released == {"loss": 0.612, "loss_start": expected, "loss_end": expected}


def test_what_was_not_measured_stays_so():
    measured = {"overall": 0.5, "open": None, "closed": 0.5, "loss": None}
    assert released_metrics(measured, {"open": 0, "closed": 20}, min_questions=10) == measured


@pytest.mark.parametrize("loss", [0.0, 1e-7, 12345.678, 3])
def test_a_loss_keeps_three_digits(loss):
    (rounded,) = released_metrics({"loss": loss}, {}, min_questions=1).values()
    assert rounded == pytest.approx(loss, rel=5e-3)
    assert len(f"{rounded:e}".split("e")[0].rstrip("0").replace(".", "")) <= 3


def test_models_that_differ_in_one_sample_of_a_thousand_look_alike():
    questions = {"open": 500, "closed": 500}
    accuracies = [{"overall": right / 1000, "open": 0.5, "closed": 0.5} for right in (612, 613)]
    first, second = (released_metrics(measured, questions, min_questions=10) for measured in accuracies)
    assert first == second


def test_a_repeated_round_answers_what_it_answered_before(tmp_path):
    other = dict.fromkeys(ROUNDED, 0.1)
    assert first_of_round(ROUNDED, 1, tmp_path) == ROUNDED
    assert first_of_round(other, 1, tmp_path) == ROUNDED
    assert first_of_round(other, 2, tmp_path) == other
    assert first_of_round(NO_GROUPS, 3, tmp_path) == NO_GROUPS
    assert first_of_round(ROUNDED, 3, tmp_path) == NO_GROUPS


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"round": 1, "metrics": {}}'])
def test_metrics_that_may_have_left_already_stay(tmp_path, content):
    (tmp_path / METRICS_FILE).write_text(content)
    with pytest.raises(LocalError, match="submit the job again"):
        first_of_round(ROUNDED, 1, tmp_path)


def test_scores_leave_rounded_and_once_a_round(tmp_path):
    first = first_scores_of_round([0.123456, 1 / 3], "score", 1, tmp_path)
    assert first == [0.123, 0.333]
    assert first_scores_of_round([0.9, 0.8], "score", 1, tmp_path) == first
    assert first_scores_of_round([0.9, 0.8], "train", 1, tmp_path) == [0.9, 0.8]
    assert first_scores_of_round([0.51234, 0.8], "score", 2, tmp_path) == [0.512, 0.8]


def test_a_record_of_scores_that_cannot_be_read_lets_none_out(tmp_path):
    first_scores_of_round([0.5], "score", 1, tmp_path)
    (tmp_path / "released-scores-score.json").write_text("{")
    with pytest.raises(LocalError, match="cannot be read"):
        first_scores_of_round([0.6], "score", 1, tmp_path)

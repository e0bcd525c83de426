# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The figure of a constant answer, against what the metrics themselves say of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpeft.core.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.remarks import baseline
from fedpeft.data.schema import Example, SiteData
from fedpeft.site.metrics import MacroF1
from fedpeft.site.site_state import below_constant

IMAGE = np.zeros((4, 4, 3), np.uint8)
LABELS = ("edema", "mass", "nodule")


def site(answers, tested, metric):
    rows, tests = (
        [
            Example(IMAGE, "?", a, False, f"{n}", alternatives=tuple(more))
            for n, (a, *more) in enumerate(map(str.split, some))
        ]
        for some in (answers, tested)
    )
    return SiteData("here", tuple(rows), (), tuple(tests), "made here", metric=metric)


def test_accuracy_is_that_of_the_most_frequent_training_answer():
    assert baseline(site(["no", "yes", "no"], ["no", "yes", "never", "no"], ACCURACY)) == 0.5


def test_the_macro_f1_of_answers_is_that_of_the_most_frequent_one():
    assert baseline(site(["no", "yes", "no"], ["no", "yes", "never", "no"], MACRO_F1)) == pytest.approx(2 / 3 / 3)


def test_where_several_answers_are_right_they_count_as_the_first_that_training_has():
    tested = ["no", "nope no", "maybe", "yes no"]
    assert baseline(site(["no", "yes", "no"], tested, MACRO_F1)) == pytest.approx((4 / 5 + 0 + 1) / 3)
    assert baseline(site(["no", "yes", "no"], tested, BALANCED_ACCURACY)) == pytest.approx(1 / 3)


@pytest.mark.parametrize("metric", [BALANCED_ACCURACY, MACRO_F1])
def test_questions_about_one_image_make_no_class_of_several_images(metric):
    apart = site(["a", "b"], ["a", "a", "b", "b", "c", "c"], metric)
    together = replace(apart, test=tuple(replace(one, image_id=one.answer) for one in apart.test))
    assert baseline(apart, min_images=2) is not None
    assert baseline(together, min_images=2) is None
    vocabulary = AnswerVocabulary(["a", "b"])
    assert [one.unseen_classes(vocabulary, one.test, min_images=2) for one in (apart, together)] == [1, 0]
    assert [one.rare_classes(vocabulary, one.test, min_images=2) for one in (apart, together)] == [{*()}, {-1, 0, 1}]


def test_one_class_is_recognized_wholly_and_the_others_never():
    assert baseline(site(["a", "b"], ["a", "a", "b", "c"], BALANCED_ACCURACY)) == pytest.approx(1 / 3)
    assert baseline(site(["a", "b"], ["c", "c", "d"], BALANCED_ACCURACY)) == 0.0  # which no answer of training is
    assert baseline(site(["a", "b"], ["a", "c", "c"], BALANCED_ACCURACY), min_images=2) == 0.0
    with_others = {"answers": ("a", "b", "c")}  # a federated head has those of all sites
    assert baseline(site(["a", "b"], ["c", "c", "d"], BALANCED_ACCURACY), **with_others) == pytest.approx(1 / 2)
    several_right = site(["a", "b"], ["c a", "c", "b"], BALANCED_ACCURACY)  # in training alone of a, c and b
    assert baseline(several_right) == pytest.approx(1 / 3)
    assert baseline(several_right, answers=("c", "a", "b")) == pytest.approx(1 / 2)


def test_macro_f1_of_predicting_every_label():
    rng = np.random.default_rng(0)
    rows = []
    for number in range(20):
        drawn = rng.integers(0, 3, size=2)  # absent, present, unknown; nobody has a nodule
        has, unknown = (tuple(LABELS[k] for k in range(2) if drawn[k] == kind) for kind in (1, 2))
        rows.append(Example(IMAGE, "", "", False, f"{number}", labels=has, unknown_labels=unknown))
    data = SiteData("here", tuple(rows), (), tuple(rows), "made here", labels=LABELS, metric=MACRO_F1)
    target = torch.tensor([[-1 if x in e.unknown_labels else int(x in e.labels) for x in LABELS] for e in rows])

    class Everything:
        def probabilities(self, batch):
            return torch.ones(batch.target.shape)

    class Rows:
        target = None

    measure, batch = MacroF1(), Rows()
    batch.target = target
    measure.add(Everything(), batch)
    assert baseline(data) == pytest.approx(measure.figures()["overall"])


def test_classes_and_answers_with_too_few_test_images_count_in_no_mean():
    images = ["a", "a", "b", "b", "c"]
    assert baseline(site(["a"], images, BALANCED_ACCURACY), min_images=2) == pytest.approx(1 / 2)
    assert baseline(site(["a"], images, BALANCED_ACCURACY), min_images=3) is None
    assert baseline(site(["a"], images, MACRO_F1), min_images=2) == pytest.approx(2 * 2 / (2 + 5) / 2)


@pytest.mark.parametrize("metric", [BALANCED_ACCURACY, MACRO_F1])
def test_a_mean_of_too_few_samples_of_answers_that_training_has_is_none(metric):
    """Six of the twelve are of an answer that training lacks."""
    data = site(["a", "b"], ["a"] * 6 + ["x"] * 6, metric)
    assert baseline(data, min_images=5, min_samples=6) is not None
    assert baseline(data, min_images=5, min_samples=7) is None
    assert baseline(data, min_images=5, min_samples=7, answers=["a", "b", "x"]) is not None


@pytest.mark.parametrize(
    ("figures", "constant", "expected"),
    [
        ([0.3, 0.3], 0.3, 0.0),  # two rounds
        ([0.3, 0.2, 0.3], 0.3, 1.0),
        ([0.9, 0.3, 0.2, 0.3], 0.3, 1.0),
        ([0.3 + 1e-8] * 3, 0.3, 1.0),  # single precision
        ([0.3, 0.31, 0.3], 0.3, 0.0),
        ([0.3, None, 0.3], 0.3, 0.0),
        ([0.3, 0.3, None], 0.3, None),
        ([0.3, 0.3, 0.3], None, None),
        ([1.0, 1.0, 1.0], 1.0, 0.0),  # all is right, and every test answer is the same
    ],
)
def test_three_rounds_no_better_than_a_constant_answer_are_seen(figures, constant, expected):
    rounds = tuple({"round": number, "overall": figure} for number, figure in enumerate(figures, 1))
    assert below_constant(rounds, constant) == expected

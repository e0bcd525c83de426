# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Normal form of answers, open and closed, and the vocabulary of a site."""

from __future__ import annotations

import numpy as np
import pytest

from fedpeft.data import AnswerVocabulary, DataError, Example
from fedpeft.data.answers import closed_by_answer, closed_by_type, normalize


def _example(answer: str, *alternatives: str) -> Example:
    image = np.zeros((1, 1, 3), np.uint8)
    return Example(image=image, question="q", answer=answer, closed=False, image_id="1", alternatives=alternatives)


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("Yes", "yes"),
        (" yes \r\n", "yes"),
        (4, "4"),
        ("4", "4"),
        ("Heart \tlungs", "heart lungs"),
        ("T1-Weighted, L2/3", "t1-weighted, l2/3"),
        ("CTA -  CT Angiography", "cta - ct angiography"),
        ("O\u0308de\u0300me", "\u00f6d\u00e8me"),  # as macOS decomposes letters
        ("\ufeffyes\u200b \u00ad", "yes"),
        ("\uff27rade \uff11", "grade 1"),
        ("\ufb01brosis \u00b5m", "fibrosis \u03bcm"),
        ("\uff76\uff9e", "\u30ac"),
        ("10\u2075 \u00bd \u2460", "10\u2075 \u00bd \u2460"),
        ("\u0130", "i\u0307"),
    ],
)
def test_an_answer_has_one_normal_form(answer, normal):
    assert normalize(answer) == normal
    assert normalize(normal) == normal


@pytest.mark.parametrize("answer", ["", " \t", "\u200b", None, True, 2.5, ["yes"]])
def test_what_is_no_answer_is_refused(answer):
    with pytest.raises(DataError, match="an answer is"):
        normalize(answer)


def test_questions_are_closed_by_their_type_or_by_yes_and_no():
    assert closed_by_type("CLOSED ")
    assert closed_by_type("closed")
    assert not closed_by_type("OPEN")
    assert closed_by_answer("no")
    assert not closed_by_answer("no fracture")
    for kind in ("", "both", None, 1):
        with pytest.raises(DataError, match="neither OPEN nor CLOSED"):
            closed_by_type(kind)


def test_a_vocabulary_numbers_the_sorted_training_answers():
    vocabulary = AnswerVocabulary.from_examples([_example("yes"), _example("4"), _example("mri"), _example("yes")])
    assert vocabulary.answers == ("4", "mri", "yes")
    assert len(vocabulary) == 3
    assert [vocabulary.index(answer) for answer in ("YES ", 4, "MRI", "ct")] == [2, 0, 1, -1]
    assert AnswerVocabulary(vocabulary.answers).answers == vocabulary.answers


def test_answers_unseen_in_training_are_counted():
    vocabulary = AnswerVocabulary(("ct", "mri"))
    test = [
        _example("ct"),
        _example("x-ray"),
        _example("cta", "ct"),
        _example("us", "sonography"),
        _example("mri", "ct"),
    ]
    assert vocabulary.unseen(test) == 2
    assert [vocabulary.accepted(example) for example in test] == [(0,), (), (0,), (), (1, 0)]
    assert [vocabulary.class_of(example) for example in test] == ["ct", "x-ray", "ct", "us", "mri"]
    assert vocabulary.unseen_classes(test) == 2, "x-ray and us; cta counts as ct"


def test_an_empty_or_repeating_vocabulary_is_refused():
    with pytest.raises(DataError, match="at least one answer"):
        AnswerVocabulary.from_examples([])
    with pytest.raises(DataError, match="twice"):
        AnswerVocabulary(("yes", "yes"))

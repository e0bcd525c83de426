# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What is said of sites whose answers or labels do not vary; that they train is in tests/site/test_one_class.py."""

import numpy as np
import pytest

from fedpeft.core.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1
from fedpeft.data import Example, SiteData
from fedpeft.data.remarks import remarks, remarks_on_variety, unread_questions

IMAGE = np.zeros((4, 4, 3), np.uint8)
CASES = {
    "answers": (ACCURACY, ["a", "b"], ["a"], []),
    "one answer": (ACCURACY, ["a", "A "], ["b"], ["Training has one answer alone"]),
    "one class": (BALANCED_ACCURACY, ["a"], ["a", "b"], ["Training has one answer alone"]),
    "labels": (MACRO_F1, [("m", "n"), ()], [("m",)], []),
    "a label that training lacks": (MACRO_F1, [("m",), ()], [("n",)], ["1 of 2 labels are on no image"]),
    "none": (MACRO_F1, [(), ()], [()], ["No image of training has a label", "No image of the test split has a label"]),
}


def site_of(metric, train, test):
    labelled = metric == MACRO_F1

    def example(number, target):
        answer, labels = ("", target) if labelled else (target, None)
        return Example(IMAGE, "?", answer, False, f"{number}", labels=labels)

    parts = [tuple(map(example, range(len(part)), part)) for part in (train, test)]
    return SiteData("here", parts[0], (), parts[1], "made here", labels=("m", "n") if labelled else (), metric=metric)


@pytest.mark.parametrize(("metric", "train", "test", "sentences"), CASES.values(), ids=list(CASES))
def test_what_does_not_vary_is_said_without_naming_it(metric, train, test, sentences):
    site = site_of(metric, train, test)
    for sentence, expected in zip(remarks_on_variety(site), sentences, strict=True):
        assert sentence.startswith(expected)


@pytest.mark.parametrize(
    ("metric", "train", "test", "sentence"),
    [
        (BALANCED_ACCURACY, ["a", "b"], ["a", "b"], "No answer is on 2 test images"),
        (BALANCED_ACCURACY, ["a", "b"], ["a", "a", "b"], ""),
        (MACRO_F1, [("m",), ("n",)], [("m",), ("n",)], "No label is on 2 test images"),
        (MACRO_F1, [("m",), ("n",)], [("m", "n"), ("n",)], ""),
        (ACCURACY, ["a", "b"], ["a", "b"], ""),
    ],
)
def test_classes_with_fewer_test_images_than_the_site_measures_are_said(metric, train, test, sentence):
    site = site_of(metric, train, test)
    assert list(remarks_on_variety(site)) == []
    found = [*remarks_on_variety(site, min_images=2)]
    assert [text.partition(":")[0] for text in found] == [sentence] * bool(sentence)
    assert found == list(remarks(site, min_images=2))


def test_fewer_test_samples_of_counted_answers_than_the_site_measures_are_said():
    site = site_of(BALANCED_ACCURACY, ["a", "b"], ["a", "a", "b"])
    assert list(remarks_on_variety(site, min_images=2, min_samples=2)) == []
    (sentence,) = remarks(site, min_images=2, min_samples=3)
    assert sentence.startswith("Fewer than 3 test samples are of answers on 2 test images or more: ")


@pytest.mark.parametrize(
    ("backbone", "questions", "said"),
    [("tiny-vit", ("what?", "where?"), True), ("tiny-vit", ("what?", "what?"), False), ("vilt", ("a", "b"), False)],
)
def test_questions_that_the_backbone_does_not_read_are_counted_and_not_named(backbone, questions, said):
    examples = tuple(Example(IMAGE, question, "a", False, "i") for question in questions)
    sentences = list(unread_questions(SiteData("here", examples, (), examples[:1], "made here"), backbone))
    assert [sentence.startswith("The data ask 2 different questions") for sentence in sentences] == [True] * said
    assert not any(question in sentence for sentence in sentences for question in questions)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Rows that repeat or contradict others are left out and counted; images in two splits are noted."""

from __future__ import annotations

import pytest
from layouts import lines, picture

from fedpeft.data import DataSettings, load
from fedpeft.data.partition import CONTRADICTED, REPEATED

ROWS = [
    *(("train", f"{n}.png", "Is it?", ("yes", "no")[n % 2]) for n in range(6)),
    ("validation", "6.png", "Is it?", "yes"),
    ("test", "7.png", "Is it?", "no"),
]
CASES = {  # more rows, what is left out, and how many are left of train, validation and test
    "nothing": ([], {}, (6, 1, 1)),
    "a row three times": ([ROWS[0], ROWS[0]], {REPEATED: 2}, (6, 1, 1)),
    "another spelling": ([("train", "0.png", " is  IT? ", "Yes ")], {REPEATED: 1}, (6, 1, 1)),
    "another question": ([("train", "0.png", "Where?", "yes")], {}, (7, 1, 1)),
    "another image": ([("train", "8.png", "Is it?", "yes")], {}, (7, 1, 1)),
    "a test question in training": ([("train", "7.png", "Is it?", "no")], {REPEATED: 1}, (6, 1, 1)),
    "a validation question in training": ([("train", "6.png", "Is it?", "yes")], {REPEATED: 1}, (6, 1, 1)),
    "another answer": ([("train", "0.png", "Is it?", "no")], {CONTRADICTED: 2}, (5, 1, 1)),
    "another answer in another split": ([("test", "0.png", "Is it?", "no")], {CONTRADICTED: 2}, (5, 1, 1)),
    "both": ([("test", "0.png", "Is it?", "no"), ROWS[0], ROWS[1]], {CONTRADICTED: 3, REPEATED: 1}, (5, 1, 1)),
}


@pytest.fixture
def folder(tmp_path):
    for number in range(9):
        picture(tmp_path / f"{number}.png")
    return tmp_path


def _load(folder, rows, header="split,image,question,answer", **settings):
    lines(folder / "manifest.csv", [header, *(",".join(row) for row in rows)])
    return load(DataSettings(dataset="manifest", root=folder, **settings))


@pytest.mark.parametrize(("more", "left_out", "sizes"), CASES.values(), ids=list(CASES))
def test_no_row_counts_twice_and_none_is_lost_without_a_word(folder, more, left_out, sizes):
    site = _load(folder, ROWS + more)
    assert dict(site.left_out) == left_out
    assert tuple(map(len, site.splits().values())) == sizes
    assert sum(sizes) + sum(left_out.values()) == len(ROWS) + len(more)
    assert site == _load(folder, ROWS + more)
    assert site.test[0].image_id == "7.png", "what is measured stays"


@pytest.mark.parametrize(
    ("header", "rows", "left_out"),
    [
        ("split,image,label", [("train", "0.png", "a"), ("train", "0.png", "A")], {REPEATED: 1}),
        ("split,image,label", [("train", "0.png", "a"), ("train", "0.png", "b")], {CONTRADICTED: 2}),
        ("split,image,labels", [("train", "0.png", "a|b"), ("train", "0.png", "b|a")], {REPEATED: 1}),
        ("split,image,labels", [("train", "0.png", "a|b"), ("train", "0.png", "")], {CONTRADICTED: 2}),
    ],
)
def test_classes_and_labels_are_treated_alike(folder, header, rows, left_out):
    others = [("train", "1.png", "a"), ("train", "2.png", "b"), ("validation", "3.png", "a"), ("test", "4.png", "b")]
    assert dict(_load(folder, rows + others, header).left_out) == left_out


@pytest.mark.parametrize(("labels", "left_out"), [(("a", "b"), {CONTRADICTED: 2}), (("a|b", "b|a"), {})])
def test_reports_do_not_make_one_image_two(folder, labels, left_out):
    rows = [("train", "0.png", of_one, f"report {n}") for n, of_one in enumerate(labels)]
    others = [("train", "1.png", "a", "x"), ("validation", "3.png", "b", "x"), ("test", "4.png", "b", "x")]
    assert dict(_load(folder, rows + others, "split,image,labels,text").left_out) == left_out


def test_an_image_and_a_patient_in_two_splits_are_noted(folder):
    rows = [(*row, "p1" if row[1] in ("0.png", "7.png") else f"p{row[1]}") for row in ROWS]
    rows += [("test", "1.png", "Where?", "left", "p1.png")]
    site = _load(folder, rows, "split,image,question,answer,patient")
    images, patients = site.notes
    assert images.startswith("1 images are in more than one split, which flatters the figures; data.split=image_disj")
    assert patients.startswith("2 patients are in more than one split")
    assert _load(folder, rows, "split,image,question,answer,patient", split="image_disjoint").notes == ()

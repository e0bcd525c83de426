# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Sites with one answer, one class or no positive label: they train, and no figure is ever NaN."""

from __future__ import annotations

import math

import pytest
from layouts import picture

from fedpeft.data.remarks import baseline
from fedpeft.site.learner import Learner

SPLITS = ("train", "train", "train", "validation", "test", "test")
QUESTIONS = "image,split,question,answer"
CLASSES, LABELS = "image,split,label", "image,split,labels"
CASES = {  # header, what stands beside each image, the figure after a round (None: not measured; ...: any), baseline
    "one answer": (QUESTIONS, ["Is it?,yes"] * 6, 1.0, 1.0),
    "no test answer in training": (QUESTIONS, [*["Is it?,yes"] * 3, *["Is it?,no"] * 3], 0.0, 0.0),
    "one class": (CLASSES, ["a"] * 6, 1.0, 1.0),
    "one class in training": (CLASSES, ["a", "a", "a", "a", "a", "b"], 0.5, 0.5),
    "no test class in training": (CLASSES, ["a", "a", "a", "b", "b", "b"], 0.0, 0.0),
    "no positive label in training": (LABELS, ["", "", "", "", "m", ""], ..., 2 / 3),
    "no positive label in the test": (LABELS, ["m", "", "", "m", "", ""], None, None),
    "no positive label in validation": (LABELS, ["m", "n", "", "", "m", "n"], ..., 2 / 3),
    "every label everywhere": (LABELS, ["m"] * 6, ..., 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize(("header", "cells", "figure", "constant"), CASES.values(), ids=list(CASES))
def test_a_site_without_variety_trains_and_its_figures_are_numbers_or_not_measured(
    sections, tmp_path, header, cells, figure, constant
):
    data = tmp_path / "data"
    for number in range(6):
        picture(data / f"{number}.png")
    rows = [f"{n}.png,{split},{cell}" for n, (split, cell) in enumerate(zip(SPLITS, cells, strict=True))]
    (data / "manifest.csv").write_text("\n".join([header, *rows]) + "\n")
    chosen = sections("training.thresholds=validation", "method.pia.accept=true")
    chosen["data"] = {"dataset": "manifest", "root": str(data)}
    learner = Learner.from_sections(chosen, site="north", folder=tmp_path / "state")
    received = {key: value + 0.01 for key, value in learner.train_round(1, {}).state.items()}
    measured = learner.train_round(2, received).metrics
    assert all(value is None or math.isfinite(value) for value in measured.values()), measured
    assert figure is ... or measured["overall"] == figure
    assert baseline(learner.data) == (None if constant is None else pytest.approx(constant))

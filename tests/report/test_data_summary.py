# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import io

import numpy as np
import pytest
from rich.console import Console

from fedpeft.cli import main
from fedpeft.data import Example, SiteData
from fedpeft.report.data_summary import data_summary, remarks

IMAGE = np.zeros((4, 4, 3), dtype=np.uint8)


def example(number: int, answer: str) -> Example:
    return Example(image=IMAGE, question="?", answer=answer, closed=answer == "yes", image_id=str(number))


def test_it_counts_splits_images_answers_and_unanswerable_questions():
    site = SiteData(
        site="here",
        train=(example(1, "yes"), example(1, "liver")),
        validation=(),
        test=(example(2, "yes"), example(3, "heart"), example(3, "spleen")),
        source="made here",
    )
    table = data_summary([site])
    cells = [next(iter(column.cells)) for column in table.columns]
    assert cells == ["here", "2", "0", "3", "3", "2", "1", "2", "0.0"]


def test_at_80_columns_no_number_is_cut():
    rows = (example(1, "yes"),)
    site = SiteData("vqa-med-2019", rows, (), rows, "made here", left_out=(("no image", 12), ("Chinese", 12_000)))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(data_summary([site]))
    assert console.export_text().split()[-1] == "12,012"


def test_what_was_left_out_and_what_is_unusual_is_said():
    rows = (example(1, "yes"),)
    site = SiteData("here", rows, (), rows, "made here", left_out=(("no image", 2), ("Chinese", 1000)), notes=("Odd.",))
    measured = "Measured by accuracy; the baseline is the most frequent answer of training."
    assert list(remarks([site])) == [
        measured,
        "Left out, no image: here 2.",
        "Left out, Chinese: here 1,000.",
        "here: Odd.",
        "here: Training has one answer alone: the site trains, and its figure is that of the baseline.",
    ]


@pytest.mark.slow
def test_the_command_shows_every_site_and_images_in_common(capsys, monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    assert main(["data", "fedpia_task1", "--set", "data.train_size=8", "--set", "data.test_size=4"]) == 0
    shown = capsys.readouterr().out
    assert "vqa-med-2021" in shown
    assert "No image is in two sites or two splits." in shown

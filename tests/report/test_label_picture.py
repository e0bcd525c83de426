# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The picture of labels over sites shows what is there, and says that it stays at home."""

import io

import numpy as np
import pytest
from PIL import Image

from fedpeft import cli
from fedpeft.data import Example, SiteData
from fedpeft.report import data_summary
from fedpeft.report.data_summary import AT_HOME, MAX_LABELS, NO_LABEL, label_counts

PIXELS = np.zeros((2, 2, 3), np.uint8)


def answered(site, answers):
    examples = tuple(Example(PIXELS, "what?", a, closed=False, image_id=f"{n}") for n, a in enumerate(answers))
    return SiteData(site, examples[:-1], (), examples[-1:], "a test")


def labelled(site, labels):
    examples = tuple(Example(PIXELS, "", "", closed=False, image_id=f"{n}", labels=own) for n, own in enumerate(labels))
    return SiteData(site, examples[:-1], (), examples[-1:], "a test", labels=("effusion", "mass"))


SITES = [
    answered("north", ["yes", "yes", "no", "left"]),
    labelled("south", [("mass",), (), ("effusion", "mass"), ("mass",), ()]),
]


def drawn(sites, *, procedural=False):
    return data_summary._figure("job$a$", sites, procedural=procedural)


def texts(figure):
    (axes,) = figure.axes
    rows = [text.get_text() for text in axes.get_yticklabels()]
    columns = [text.get_text() for text in axes.get_xticklabels()]
    return rows, columns, [text.get_text() for text in figure.texts]


def test_every_example_counts_once_for_each_of_its_labels_and_the_most_frequent_come_first():
    counts = {label: of_sites.tolist() for label, of_sites in label_counts(SITES).items()}
    assert counts == {
        "mass": [0, 3],
        NO_LABEL: [0, 2],
        "yes": [2, 0],
        "effusion": [0, 1],
        "left": [1, 0],
        "no": [1, 0],
    }
    assert list(counts)[:3] == ["mass", NO_LABEL, "yes"]


def test_rows_are_labels_columns_are_sites_and_the_counts_stand_there():
    figure = drawn(SITES)
    rows, columns, outside = texts(figure)
    assert rows == list(label_counts(SITES))
    assert columns == ["north", "south"]
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["1", "1", "1", "2", "2", "3"]
    assert outside[0] == "job$a$"
    assert AT_HOME in " ".join(outside[:0:-1])
    assert not any("rocedural" in line for line in outside)


def test_procedural_data_are_called_so():
    assert any("Procedural data" in line for line in texts(drawn(SITES, procedural=True))[2])


@pytest.mark.slow
def test_of_many_answers_the_rest_is_one_row_and_of_many_sites_no_count_is_written():
    answers = [f"answer {number}" for number in range(100) for _ in range(100 - number)]
    figure = drawn([answered(f"site-{number}", answers) for number in range(40)])
    rows, _, _ = texts(figure)
    assert len(rows) == MAX_LABELS
    assert rows[-1] == f"{100 - MAX_LABELS + 1} others"
    assert not figure.axes[0].texts
    width, height = figure.get_size_inches()
    assert width < 15
    assert height < 12


def test_the_areas_are_in_proportion_to_the_counts():
    (circles,) = drawn(SITES).axes[0].collections
    sizes = dict(zip(map(tuple, circles.get_offsets().tolist()), circles.get_sizes(), strict=True))
    assert sizes[1.0, 0.0] == pytest.approx(1.5 * sizes[0.0, 2.0])


@pytest.mark.slow
def test_the_command_writes_the_picture_of_a_job_or_a_site_and_says_what_it_is(tmp_path, capsys):
    small = ["--set", "data.train_size=8", "--set", "data.validation_size=2", "--set", "data.test_size=4"]
    file = tmp_path / "labels.png"
    assert cli.main(["data", "fedpia_task1", "slake", *small, "--picture", str(file)]) == 0
    assert capsys.readouterr().out.endswith(f"picture  {file}\n{AT_HOME}\n")
    once = file.read_bytes()
    image = Image.open(io.BytesIO(once))
    assert AT_HOME in image.text["Description"]
    assert cli.main(["data", "fedpia_task1", "slake", *small, "--picture", str(file)]) == 0
    assert file.read_bytes() == once


def test_another_kind_of_file_is_refused_before_anything_is_loaded(tmp_path, capsys):
    assert cli.main(["data", "fedpia_task1", "--picture", str(tmp_path / "labels.jpg")]) == 1
    assert "end the file's name in .png" in capsys.readouterr().err

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Finding data sets on disk, and the message if they are missing."""

from __future__ import annotations

import layouts
import pytest

from fedpeft.data import DataError, DataSettings, load
from fedpeft.data.folders import find, images_below


@pytest.mark.parametrize(
    ("dataset", "folder"),
    [
        ("slake", "slake/Slake1.0"),
        ("slake", "slake"),
        ("slake", "Slake1.0"),
        ("vqa_med_2019", "vqa_med_2019"),
        ("vqa_med_2020", "VQA-Med-2020"),
        ("vqa_med_2021", "vqa_med_2021"),
    ],
)
def test_a_set_is_found_by_its_names_under_the_variable(tmp_path, monkeypatch, dataset, folder):
    getattr(layouts, dataset)(tmp_path / folder)
    monkeypatch.setenv("FEDPEFT_DATA", str(tmp_path))
    in_default_folder, at_root = (load(DataSettings(dataset=dataset, root=root)) for root in (None, tmp_path / folder))
    assert in_default_folder == at_root


@pytest.mark.parametrize("dataset", ["slake", "vqa_rad", "vqa_med_2019", "vqa_med_2020", "vqa_med_2021", "manifest"])
def test_without_a_folder_the_variable_and_the_remedy_are_named(tmp_path, monkeypatch, dataset):
    monkeypatch.delenv("FEDPEFT_DATA", raising=False)
    with pytest.raises(DataError, match=f"No data folder for '{dataset}': set the environment variable FEDPEFT_DATA"):
        load(DataSettings(dataset=dataset))
    with pytest.raises(DataError, match=rf"data folder .*gone of '{dataset}' does not exist; correct root"):
        load(DataSettings(dataset=dataset, root=tmp_path / "gone"))
    monkeypatch.setenv("FEDPEFT_DATA", str(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"FEDPEFT_DATA=.*gone is not a folder; correct the environment variable"):
        load(DataSettings(dataset=dataset))


def test_a_folder_without_the_set_says_the_names_that_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPEFT_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"holds no folder for 'slake': put .* as 'slake/Slake1\.0' or 'slake' or"):
        load(DataSettings(dataset="slake"))


def test_find_takes_the_shallowest_of_any_case_and_refuses_two(tmp_path):
    deep = layouts.lines(tmp_path / "a" / "b" / "QA_Pairs.txt", ["x"])
    assert find(tmp_path, "QA_pairs.txt") == deep
    first = layouts.lines(tmp_path / "a" / "qa_pairs.txt", ["x"])
    layouts.lines(tmp_path / "__MACOSX" / "qa_pairs.txt", ["x"])
    assert find(tmp_path, "QA_pairs.txt") == first
    second = layouts.lines(tmp_path / "c" / "QA_pairs.txt", ["x"])
    with pytest.raises(DataError, match=rf"Both {first} and {second} are there; keep one"):
        find(tmp_path, "QA_pairs.txt")
    with pytest.raises(DataError, match=r"The folder 'images' is missing under .*; unpack"):
        find(tmp_path, "images", folder=True)


def test_images_are_known_by_name_without_extension(tmp_path):
    with pytest.raises(DataError, match="holds no image; unpack"):
        images_below(tmp_path)
    picture = layouts.picture(tmp_path / "inner" / "synpic1.JPG")
    layouts.lines(tmp_path / "inner" / "synpic1.txt", ["x"])
    assert images_below(tmp_path) == {"synpic1": picture}
    layouts.picture(tmp_path / "synpic1.png")
    with pytest.raises(DataError, match=r"Both .* are there; keep one"):
        images_below(tmp_path)

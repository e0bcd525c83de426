# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Finding data sets on disk, and the message if they are missing."""

from __future__ import annotations

import itertools
import os
import shutil
import unicodedata
from pathlib import Path

import layouts
import pytest
from PIL import Image

from fedpeft.data import DataError, DataSettings, load
from fedpeft.data.folders import IMAGE_SUFFIXES, files_below, find, images_below, is_image
from fedpeft.data.images import FORMATS


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


def test_linked_folders_are_entered_but_none_that_holds_the_link(tmp_path):
    archive = tmp_path / "archive"
    for name in ("a/1.png", "b/2.png", ".hidden/3.png", "__MACOSX/4.png"):
        layouts.picture(archive / name)
    root = tmp_path / "root"
    layouts.picture(root / "0.png")
    (root / "linked").symlink_to(archive)
    (archive / "b" / "again").symlink_to(root)
    (archive / "b" / "up").symlink_to(archive)
    (root / "gone").symlink_to(tmp_path / "nowhere")
    names = [file.relative_to(root).as_posix() for file in files_below(root)]
    assert names == ["0.png", "linked/a/1.png", "linked/b/2.png"]


def test_a_link_back_to_the_data_is_no_second_copy_in_another_class(tmp_path):
    for name in ("normal", "ill"):
        layouts.pictures(tmp_path / name, [f"{name}-{number}" for number in range(12)])
    (tmp_path / "ill" / "all").symlink_to(tmp_path)
    data = load(DataSettings(dataset="class_folders", root=tmp_path))
    assert sum(map(len, data.splits().values())) == 24
    assert data.left_out == ()


def test_an_image_that_is_a_link_to_nothing_is_named(tmp_path):
    (tmp_path / "1.JPG").symlink_to(".git/annex/objects/1.JPG")
    with pytest.raises(DataError, match=r"1\.JPG is a link to a file that is not there: fetch it"):
        files_below(tmp_path)


@pytest.mark.slow
def test_links_that_lead_into_each_other_do_not_go_on_for_ever(tmp_path, monkeypatch):
    folders = [tmp_path / str(number) for number in range(8)]
    for folder in folders:
        folder.mkdir()
    for folder, other in itertools.permutations(folders, 2):
        (folder / other.name).symlink_to(other)
    monkeypatch.setattr("fedpeft.data.folders.MAX_FOLDERS", 1000)
    with pytest.raises(DataError, match="more than 1,000 folders below it: remove links to folders"):
        files_below(tmp_path)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("dataset", ["class_folders", "ham10000"])
def test_images_in_linked_folders_are_loaded(tmp_path, dataset, form):
    names = unicodedata.normalize(form, "na\u0308vus"), "melanoma"
    ids = {name: [f"{name}-{number}" for number in range(12)] for name in names}
    for name in names:
        layouts.pictures(tmp_path / "archive" / name, ids[name])
        for number, image in enumerate(ids[name]):
            layouts.picture(tmp_path / "root" / name / f"p{number}" / f"{image}.png")
        (tmp_path / "root" / name / "linked").symlink_to(tmp_path / "archive" / name)
    if dataset == "ham10000":
        shutil.rmtree(tmp_path / "root")
        (tmp_path / "root").mkdir()
        for name in names:
            (tmp_path / "root" / name).symlink_to(tmp_path / "archive" / name)
        rows = [
            f"l{image},{image},{kind}" for name, kind in zip(names, ("nv", "mel"), strict=True) for image in ids[name]
        ]
        layouts.lines(tmp_path / "root" / "HAM10000_metadata.csv", ["lesion_id,image_id,dx", *rows])
    data = load(DataSettings(dataset=dataset, root=tmp_path / "root"))
    assert sum(map(len, data.splits().values())) == (48 if dataset == "class_folders" else 24)
    assert data.left_out == ()
    classes = {"n\u00e4vus", "melanoma"} if dataset == "class_folders" else {"melanocytic nevus", "melanoma"}
    assert {example.answer for example in data.train} == classes


@pytest.mark.parametrize(("written", "stored"), [("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD")])
def test_a_table_names_a_file_in_any_unicode_form(tmp_path, written, stored):
    names = [f"\u00e9cho/\u00e9chographie-{number}.png" for number in range(20)]
    for name in names:
        layouts.picture(tmp_path / unicodedata.normalize(stored, name))
    rows = [f"{unicodedata.normalize(written, name)},Lesion?,{number % 2}" for number, name in enumerate(names)]
    layouts.lines(tmp_path / "manifest.csv", ["image,question,answer", *rows])
    data = load(DataSettings(dataset="manifest", root=tmp_path))
    assert {e.image_id for part in data.splits().values() for e in part} == set(names)


def test_every_format_that_is_read_counts_as_an_image_in_a_folder():
    known = {suffix for suffix, kind in Image.registered_extensions().items() if kind in FORMATS}
    assert known - IMAGE_SUFFIXES == {".apng", ".pfm"}  # of several frames; of more than 8 bits
    assert known >= IMAGE_SUFFIXES
    assert all(is_image(Path(f"1{suffix.upper()}")) for suffix in IMAGE_SUFFIXES)


def test_a_folder_that_may_not_be_entered_is_one_sentence(tmp_path, monkeypatch):
    """But for that of a disk's file system, which holds no data."""
    layouts.vqa_med_2020((root := tmp_path / "data") / "below")
    closed, scandir, is_dir = {root / "lost+found"}, os.scandir, Path.is_dir
    (root / "lost+found").mkdir()

    def refuse(path, then):
        if Path(path) in closed:
            raise PermissionError(13, "Permission denied", str(path))
        return then(path)

    monkeypatch.setattr(os, "scandir", lambda path: refuse(path, scandir))
    monkeypatch.setattr(Path, "is_dir", lambda path: refuse(path, is_dir))
    settings = DataSettings(dataset="vqa_med_2020", root=root)
    assert load(settings).train
    closed.add(root / "below")
    with pytest.raises(DataError, match=rf"^{root}/below cannot be read \(Permission denied\); check the folder"):
        load(settings)
    closed.add(root)
    with pytest.raises(DataError, match=rf"^{root} cannot be read \(Permission denied\); check the folder"):
        load(settings)
    monkeypatch.setattr(Path, "is_dir", is_dir)
    with pytest.raises(DataError, match=rf"^{root} cannot be read \(Permission denied\); check the folder"):
        load(settings)


def test_a_folder_that_went_away_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match=r"away.* cannot be read .*check that it is there"):
        files_below(tmp_path / "away" / "images")


@pytest.mark.parametrize("name", [b"cat/\xfcber.png", b"bad\xffclass/one.png"])
def test_a_name_that_is_not_utf_8_is_refused_and_its_bytes_are_shown(tmp_path, name):
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    file.parent.mkdir()
    Image.new("RGB", (8, 8)).save(file)
    with pytest.raises(DataError, match=r"(\\xfcber|bad\\xffclass).* has a name that is not UTF-8: rename it"):
        files_below(tmp_path)
    file.rename(file.with_name("notes.txt") if b"cat" in name else tmp_path / "one.png")
    assert files_below(tmp_path)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Questions from class labels: sets that can be read, types in the published shares, splits, the page of statistics."""

from __future__ import annotations

import csv
from collections import Counter

import numpy as np
import pytest
from layouts import picture

from fedpeft.cli import main
from fedpeft.data import DataError, DataSettings, load
from fedpeft.data.build_vqa import Item, Source, build, sources
from fedpeft.data.medmnist import SETS
from fedpeft.data.ultra_med_vqa import CLOSED, OPEN, SHARES, Subject, ask, numbers


def _classes(root, *, names=("normal", "Pneumonia", "old_TB"), count=10):
    for name in names:
        for number in range(count):
            picture(root / name / f"{number}.png")
    return root


def _npz(folder, kind, *, count=20, size=""):
    rng = np.random.default_rng(0)
    arrays = {}
    for split in ("train", "val", "test"):
        arrays[f"{split}_images"] = rng.integers(0, 256, (count, 4, 4), dtype=np.uint8)
        shape, top = ((count, len(kind.classes)), 2) if kind.labelled else ((count, 1), len(kind.classes))
        arrays[f"{split}_labels"] = rng.integers(0, top, shape, dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{kind.name}{size}.npz", **arrays)


def _rows(folder):
    with open(folder / "manifest.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_folder_of_classes_becomes_a_manifest_that_loads(tmp_path, capsys):
    source = _classes(tmp_path / "Chest Clinic")
    (source / "notes.txt").touch()
    (source / "normal" / "index.html").touch()
    command = ["build-vqa", str(source), str(tmp_path / "out"), "--modality", "x-ray", "--anatomy", "lung"]
    assert main(command) == 0
    assert "chest-clinic  Chest Clinic: 30 images" in capsys.readouterr().out
    rows = _rows(tmp_path / "out" / "chest-clinic")
    assert Counter(row["split"] for row in rows) == {"train": 24, "test": 6}
    assert len({row["image"] for row in rows}) == 30
    types = Counter(row["question_type"] for row in rows)
    assert [types[kind] for kind in SHARES] == [4, 7, 15, 0, 0, 4]  # 10 : 20 : 39 : 10 of what can be asked
    answers = {row["answer"] for row in rows}
    assert {"x-ray", "lung"} <= answers <= {"x-ray", "lung", "yes", "no", "normal", "abnormal", "pneumonia", "old tb"}
    data = load(DataSettings(dataset="manifest", root=tmp_path / "out" / "chest-clinic"))
    assert sum(map(len, data.splits().values())) == 30
    page = (tmp_path / "out" / "statistics.md").read_text()
    assert "| Chest Clinic | chest-clinic | 30 | 3 | 2 no image in a class folder |" in page
    assert "| disease diagnosis | 15 | 50.0 | 39 |" in page
    assert main(command) == 1
    assert "out exists; name a folder that does not" in capsys.readouterr().err


def test_splits_of_a_folder_are_joined_and_sets_are_sites(tmp_path):
    for split in ("train", "test"):
        _classes(tmp_path / "one" / split, count=3)
    (one,) = sources(tmp_path / "one")
    assert (one.site, len(one.items), len(one.subject.classes)) == ("one", 18, 3)
    _classes(tmp_path / "many" / "Eye (left)", count=2)
    _classes(tmp_path / "many" / "skin", count=2)
    assert [source.site for source in sources(tmp_path / "many")] == ["eye-left", "skin"]


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    _classes(tmp_path / "set")
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        build(sources(tmp_path / "set", modality="ct"), tmp_path / name, seed=seed)
    one, same, other = ((tmp_path / name / "set" / "manifest.csv").read_bytes() for name in "abc")
    assert one == same != other


@pytest.mark.slow
def test_medmnist_becomes_the_nine_sites_of_the_paper(tmp_path):
    for kind in SETS:
        _npz(tmp_path / "medmnist", kind)
    _npz(tmp_path / "medmnist", SETS[0], size="_64", count=25)
    parts = sources(tmp_path / "medmnist")
    assert len(parts) == 12
    assert len({part.site for part in parts}) == 9
    build(parts, tmp_path / "out")
    rows = [row for site in {part.site for part in parts} for row in _rows(tmp_path / "out" / site)]
    assert len(rows) == 60 * 12 + 15
    chest = _rows(tmp_path / "out" / "chest-x-ray")
    assert {"images/chestmnist", "images/pneumoniamnist"} == {row["image"].rsplit("/", 1)[0] for row in chest}
    assert not any("no finding" in row["question"] for row in chest)
    grades = [row for row in rows if row["question_type"] == "disease grading"]
    assert {row["image"].split("/")[1] for row in grades} == {"retinamnist"}


def test_the_published_shares_are_met_where_the_sets_allow_it():
    sizes = {"disease": 600, "tissue": 350, "grade": 100, "other": 250}
    parts = [
        Source(kind, kind, Subject("ct", "eye", ("a", "b"), kind), [Item("", ("a",), print)] * size)
        for kind, size in sizes.items()
    ]
    fitted = numbers([(part.subject, len(part.items)) for part in parts])
    assert fitted.sum(axis=1).tolist() == list(sizes.values())
    assert np.abs(fitted.sum(axis=0) / sum(sizes.values()) - np.array(list(SHARES.values()))).max() < 0.005
    assert (fitted[0] > 0).tolist() == [True, True, True, False, False, False], "no set loses a type"
    lone = numbers([(Subject("", "", ("a", "b"), "grade"), 7)])
    assert lone.tolist() == [[0, 0, 0, 7, 0, 0]]


@pytest.mark.parametrize("kind", SHARES)
def test_every_wording_can_be_asked(kind):
    of = {"anatomy identification": "anatomy", "disease grading": "grade", "tissue identification": "tissue"}
    of |= {"other biological attributes": "other"}
    subject = Subject("ct", "eye", ("a", "b"), of.get(kind, "disease"))
    rng = np.random.default_rng(0)
    questions = [ask(kind, subject, ("a",), rng) for _ in range(200)]
    wordings = len(OPEN[kind]) + len(CLOSED.get(kind, ())) * 2
    assert len({question.text for question in questions}) == wordings
    assert all("{" not in question.text for question in questions)
    assert all(question.closed == (question.answer in ("yes", "no")) for question in questions)


def test_an_image_with_several_labels_is_asked_about_one_of_them():
    subject = Subject("", "", ("mass", "edema", "hernia", "no finding"), "disease")
    rng = np.random.default_rng(0)
    for names in (("mass", "edema"), ("no finding",)):
        for _ in range(50):
            question = ask("disease diagnosis", subject, names, rng)
            if question.answer == "yes":
                assert any(name in question.text for name in names)
            elif question.closed:
                assert not any(name in question.text for name in names)
            else:
                assert names == ("no finding",) == (question.answer,)


def test_what_cannot_be_read_is_refused_with_what_is_expected(tmp_path):
    (tmp_path / "flat").mkdir()
    picture(tmp_path / "flat" / "1.png")
    with pytest.raises(DataError, match=r"(?s)no images in class folders\. Expected:.*<class>.*There is '1\.png'\."):
        sources(tmp_path / "flat")
    with pytest.raises(DataError, match="neither a folder nor a file of MedMNIST"):
        sources(tmp_path / "gone")
    _npz(tmp_path, SETS[0]._replace(name="ownset"))
    with pytest.raises(DataError, match=r"ownset\.npz is none of MedMNIST's files"):
        sources(tmp_path / "ownset.npz")
    (_classes(tmp_path / "set") / "normal" / "3.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"3\.png cannot be decoded"):
        build(sources(tmp_path / "set"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match="test_fraction=1 must be"):
        build(sources(tmp_path / "set"), tmp_path / "out", test_fraction=1)


@pytest.mark.parametrize("other", ["chest-a", "Chest_A", "CHEST A"])
def test_two_folders_do_not_become_one_site(tmp_path, other):
    for name in ("Chest A", other):
        _classes(tmp_path / "sets" / name)
    with pytest.raises(DataError, match="would both be the site 'chest-a'; rename one"):
        build(sources(tmp_path / "sets"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_class_is_called_as_a_missing_value(tmp_path):
    with pytest.raises(DataError, match=r"NA has a name that programs write for a missing value.*rename the folder"):
        sources(_classes(tmp_path / "set", names=("flu", "NA")))


def test_folders_of_patients_are_not_taken_for_diagnoses(tmp_path):
    for name in ("normal", "pneumonia"):
        for patient in range(3):
            picture(tmp_path / "source" / name / f"{name}-{patient}" / "1.png")
    with pytest.raises(DataError, match="fewer images each than there are of them, as patients' folders have"):
        sources(tmp_path / "source")
    _classes(tmp_path / "sets" / "brain", names=("glioma", "meningioma"))
    _classes(tmp_path / "sets" / "chest", names=("normal", "pneumonia", "covid"))
    assert [one.site for one in sources(tmp_path / "sets")] == ["brain", "chest"]


@pytest.mark.parametrize("known", [{"modality": "NA"}, {"anatomy": "n/a"}])
def test_a_missing_value_is_no_answer(tmp_path, known):
    (tmp_path / "set" / "yes").mkdir(parents=True)
    with pytest.raises(DataError, match="which programs write where a value is missing: leave it out"):
        sources(tmp_path / "set", **known)


def test_a_value_that_is_no_text_of_utf_8_is_refused_before_any_work(tmp_path):
    with pytest.raises(DataError, match=r"--modality cannot be read: .*; write it in UTF-8"):
        sources(tmp_path, modality="radiograf\udceda")

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""VQA-RAD in both layouts, as five sites, and the real one where FEDPEFT_DATA holds it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from layouts import as_json, ids, pictures, rad_row

from fedpeft.data import AnswerVocabulary, DataError, DataSettings, load
from fedpeft.data.images import as_array
from fedpeft.data.published_vqa import PARTS

ORGANS = ["HEAD"] * 10 + ["CHEST"] * 15 + ["ABD"] * 15


def _rows() -> tuple[list[dict], list[dict]]:
    """40 images with two training questions, every second with a test question as well, and templates in between."""
    train, test = [], []
    for image, organ in zip(ids(0, 40), ORGANS, strict=True):
        train += [rad_row(image, organ=organ), rad_row(image, organ=organ, answer="No", phrase="para")]
        train.append(rad_row(image, organ=organ, phrase="frame"))
    for image, organ in list(zip(ids(0, 40), ORGANS, strict=True))[::2]:
        test.append(rad_row(image, organ=organ, answer="left lung", answer_type="OPEN"))
    train[0].update(answer=4, answer_type="CLOSED ", question_type="PRSE")
    train[1].update(question_type="Other, ATRIB")
    return train, test


def _mevf(root: Path) -> Path:
    train, test = _rows()
    pictures(root / "images", ids(0, 40))
    as_json(root / "trainset.json", train)
    as_json(root / "testset.json", test)
    return root


def _official(root: Path) -> Path:
    train, test = _rows()
    pictures(root / "VQA_RAD Image Folder", ids(0, 40))
    kept = [row for row in train if row["phrase_type"] != "frame"]
    test = [{**row, "phrase_type": "test_" + row["phrase_type"]} for row in test]
    as_json(root / "VQA_RAD Dataset Public.json", test[:4] + kept + test[4:])
    return root


def _load(root, **settings):
    return load(DataSettings(dataset="vqa_rad", root=root, **settings))


def _images(part) -> set[str]:
    return {example.image_id for example in part}


@pytest.mark.parametrize("layout", [_mevf, _official])
def test_both_layouts_give_the_official_pairs(tmp_path, layout):
    site = _load(layout(tmp_path), validation_fraction=0)
    assert (site.site, len(site.train), len(site.validation), len(site.test)) == ("vqa-rad", 80, 0, 20)
    first, second = site.train[:2]
    assert (first.answer, first.closed, first.question_type, first.image_id) == ("4", True, "PRES", "synpic0")
    assert (second.answer, second.question_type) == ("no", "OTHER, ATTRIB")
    assert (site.test[0].answer, site.test[0].closed) == ("left lung", False)
    assert as_array(first.image).shape == (5, 6, 3)
    assert "real data" in site.source


def test_both_layouts_of_vqa_rad_give_the_same_examples(tmp_path):
    one, other = (_load(make(tmp_path / make.__name__), site="abd-a") for make in (_mevf, _official))
    assert (one.splits(), one.source) == (other.splits(), other.source)
    templates = ("a template that the owners do not publish as a pair", 40)
    assert one.left_out == (templates, *other.left_out)
    assert sum(len(part) for part in one.splits().values()) + sum(count for _, count in one.left_out) == 140


@pytest.mark.parametrize("split", ["published", "image_disjoint"])
def test_five_sites_share_no_image_whatever_their_seeds(tmp_path, split):
    _mevf(tmp_path)
    sites = [_load(tmp_path, site=name, split=split, seed=seed) for seed, name in enumerate(PARTS)]
    assert [site.site for site in sites] == ["head", "chest-a", "chest-b", "abd-a", "abd-b"]
    images = [_images((*site.train, *site.validation, *site.test)) for site in sites]
    assert sum(map(len, images)) == len(set().union(*images)) == 40
    assert [len(part) for part in images] == [10, 8, 7, 8, 7]


def test_image_disjoint_splits_share_no_image_and_follow_the_seed(tmp_path):
    _mevf(tmp_path)
    site = _load(tmp_path, split="image_disjoint", seed=1)
    parts = [_images(part) for part in site.splits().values()]
    assert [len(part) for part in parts] == [28, 4, 8]
    assert len(set().union(*parts)) == 40
    assert _load(tmp_path, split="image_disjoint", seed=1) == site
    assert _load(tmp_path, split="image_disjoint", seed=2) != site


def test_images_of_another_site_can_be_excluded(tmp_path):
    site = _load(_mevf(tmp_path), exclude=["synpic0", "synpic7"])
    assert not {"synpic0", "synpic7"} & _images((*site.train, *site.validation, *site.test))


def _broken(root: Path, change: str) -> dict:
    train, _ = _rows()
    if change == "image":
        (root / "images" / "synpic3.jpg").unlink()
    elif change == "folder":
        (root / "images").rename(root / "pictures")
    elif change == "testset":
        (root / "testset.json").unlink()
    elif change == "both":
        (root / "trainset.json").unlink()
    elif change == "key":
        as_json(root / "trainset.json", [{k: v for k, v in row.items() if k != "answer_type"} for row in train])
    elif change == "type":
        as_json(root / "trainset.json", [{**row, "answer_type": "MAYBE"} for row in train])
    elif change == "answer":
        as_json(root / "trainset.json", [{**row, "answer": None} for row in train])
    elif change == "frames":
        as_json(root / "trainset.json", [{**row, "phrase_type": "frame"} for row in train])
    elif change == "truncated":
        (root / "trainset.json").write_text('[{"qid": 1,')
    elif change == "object":
        as_json(root / "trainset.json", {"rows": train})
    elif change == "empty":
        as_json(root / "testset.json", [])
    return {"site": "leg"} if change == "site" else {}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("image", r"synpic3\.jpg, named in .*trainset\.json, record 10, is missing; restore"),
        ("folder", r"holds no image folder 'VQA_RAD Image Folder' or 'images'; unpack"),
        ("testset", r"testset\.json is missing; unpack"),
        ("both", r"neither 'VQA_RAD Dataset Public\.json' nor 'trainset\.json'; unpack"),
        ("key", r"trainset\.json, record 1: the key 'answer_type' is missing"),
        ("type", r"trainset\.json, record 1: answer_type is 'MAYBE', neither OPEN nor CLOSED; correct"),
        ("answer", r"an empty train split; .* left out: it lacks an image, a question or an answer"),
        ("frames", r"'vqa-rad' has an empty train split; check"),
        ("truncated", r"trainset\.json is not valid JSON .*download it again"),
        ("object", r"trainset\.json is not a JSON list of records"),
        ("empty", r"testset\.json holds no record"),
        ("site", r"site='leg' is not a part of VQA-RAD; choose one of vqa-rad, head, chest-a"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path, change, sentence):
    settings = _broken(_mevf(tmp_path), change)
    with pytest.raises(DataError, match=sentence) as error:
        _load(tmp_path, **settings)
    assert "\n" not in str(error.value).partition(" Expected:\n")[0]


REAL = pytest.mark.skipif(
    not Path(os.environ.get("FEDPEFT_DATA") or "absent", "vqa_rad").is_dir(),
    reason="FEDPEFT_DATA does not point to a folder that holds vqa_rad",
)


@pytest.mark.slow
@REAL
@pytest.mark.real_data
def test_the_real_set_has_1797_and_451_pairs():
    site = load(DataSettings(dataset="vqa_rad", validation_fraction=0))
    assert (len(site.train), len(site.test)) == (1797, 451)
    assert {"2", "4", "12"} <= {example.answer for example in site.train}
    assert sum(example.closed for example in site.train) == 1027
    kinds = {kind for example in site.train for kind in example.question_type.split(", ")}
    assert "PRSE" not in kinds
    assert "ATRIB" not in kinds
    assert len(_images(site.test)) == 203
    assert len(_images(site.test) & _images(site.train)) == 202
    vocabulary = AnswerVocabulary.from_examples(site.train)
    assert 0 < vocabulary.unseen(site.test) < 451


@pytest.mark.slow
@REAL
@pytest.mark.real_data
def test_the_real_set_as_five_sites():
    sites = [load(DataSettings(dataset="vqa_rad", site=name, split="image_disjoint")) for name in PARTS]
    parts = [_images(part) for site in sites for part in site.splits().values()]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 314
    assert sum(len(part) for site in sites for part in site.splits().values()) == 2248
    assert as_array(sites[0].test[0].image).ndim == 3

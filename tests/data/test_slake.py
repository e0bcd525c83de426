# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""SLAKE: English rows only, either spelling of the validation file, closed questions that are not yes/no."""

from __future__ import annotations

import pytest
from layouts import as_json, slake, slake_row

from fedpeft.data import DataError, DataSettings, load


def _load(root, **settings):
    return load(DataSettings(dataset="slake", root=root, **settings))


def _images(part) -> set[str]:
    return {example.image_id for example in part}


@pytest.mark.parametrize("validation", ["validate.json", "validation.json"])
@pytest.mark.parametrize("split", ["published", "paper"])
def test_english_rows_as_published(tmp_path, validation, split):
    site = _load(slake(tmp_path / "Slake1.0", validation=validation), split=split)
    assert [len(part) for part in site.splits().values()] == [11, 3, 3]
    assert not _images(site.train) & _images(site.test)
    example = site.train[-1]
    assert (example.answer, example.closed, example.image_id, example.question_type) == (
        "left",
        True,
        "xmlab1",
        "Position",
    )
    assert example.image == tmp_path / "Slake1.0" / "imgs" / "xmlab1" / "source.jpg"
    assert not site.train[0].closed
    assert site.site == "slake"
    assert site.left_out == (("the question is not in English", 2),)
    assert site == _load(tmp_path, split=split)


def test_split_again_by_image(tmp_path):
    parts = [_images(part) for part in _load(slake(tmp_path), split="image_disjoint").splits().values()]
    assert [len(part) for part in parts] == [11, 2, 3]
    assert len(set().union(*parts)) == 16


def test_the_chinese_rows_alone_are_no_data(tmp_path):
    as_json(slake(tmp_path) / "train.json", [slake_row(1, language="zh")])
    with pytest.raises(DataError, match=r"train\.json holds no row with q_lang 'en'"):
        _load(tmp_path)


def test_a_missing_validation_file_image_or_key_is_named(tmp_path):
    slake(tmp_path)
    (tmp_path / "imgs" / "xmlab2" / "source.jpg").unlink()
    with pytest.raises(DataError, match=r"xmlab2.source\.jpg, named in .*train\.json, record 2, is missing"):
        _load(tmp_path)
    as_json(tmp_path / "train.json", [{"img_name": "xmlab1/source.jpg"}])
    with pytest.raises(DataError, match=r"train\.json, record 1: the key 'question' is missing"):
        _load(tmp_path)
    (tmp_path / "validate.json").unlink()
    with pytest.raises(DataError, match=r"neither 'validate\.json' nor 'validation\.json'"):
        _load(tmp_path)


def test_a_site_that_loses_its_validation_set_is_refused_unless_it_wants_none(tmp_path):
    lost = {"exclude": ("xmlab11", "xmlab12", "xmlab13")}
    slake(tmp_path)
    with pytest.raises(DataError, match=r"'slake' has no validation example; .* validation_fraction=0"):
        _load(tmp_path, **lost)
    assert _load(tmp_path, **lost, validation_fraction=0).validation == ()

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""PathVQA in its owners' layout, whose tables are pickles."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from layouts import picture

from fedpeft.data import DataError, DataSettings, load

SIZES = {"train": 10, "val": 3, "test": 4}


def _tree(root: Path, **more) -> Path:
    """Two questions about each image; one row of the training table has no answer."""
    root = root / "pvqa"
    for split, count in SIZES.items():
        rows = []
        for number in range(count):
            name = f"{split}_{number:04d}"
            picture(root / "images" / split / f"{name}.jpg", mode="CMYK" if number == 0 else "RGB")
            rows += [{"image": name, "question": "what is present?", "answer": "Fat necrosis "}]
            rows += [{"image": name, "question": "is it normal?", "answer": "Yes", **more}]
        rows += [{"image": name, "question": "where?", "answer": ""}] * (split == "train")
        _table(root, split, rows)
    return root


def _table(root: Path, split: str, rows: object) -> Path:
    path = root / "qas" / split / f"{split}_qa.pkl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(rows))
    return path


def _load(root: Path, **settings):
    return load(DataSettings(dataset="path_vqa", root=root, **settings))


def test_the_published_splits(tmp_path):
    _tree(tmp_path)
    data = _load(tmp_path)
    assert [len(part) for part in data.splits().values()] == [20, 6, 8]
    assert (data.site, data.left_out) == ("path-vqa", (("it lacks an image, a question or an answer", 1),))
    first, second = data.train[:2]
    assert (first.answer, first.closed, first.image_id) == ("fat necrosis", False, "train_0000")
    assert (second.answer, second.closed) == ("yes", True)
    assert len({e.image_id for part in _load(tmp_path, split="image_disjoint").splits().values() for e in part}) == 17


def test_a_table_runs_no_program(tmp_path):
    class Program:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    _table(_tree(tmp_path), "train", [Program()])
    with pytest.raises(DataError, match=r"train_qa\.pkl is no table of texts \(it holds posix.mkdir\)"):
        _load(tmp_path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"image": 1}, "is not a list of records"),
        (["train_0000"], "is not a list of records"),
        ([{"image": "train_0000", "question": "q", "answer": 1.5}], "record 1: an answer is float, not text"),
        (
            [{"image": "train_9999", "question": "q", "answer": "a"}],
            r"train_9999\.jpg, named in .*record 1, is",
        ),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, table, sentence):
    _table(_tree(tmp_path), "train", table)
    with pytest.raises(DataError, match=sentence):
        _load(tmp_path)


def test_a_cut_off_table_and_the_papers_split_are_refused(tmp_path):
    root = _tree(tmp_path)
    file = root / "qas" / "val" / "val_qa.pkl"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"val_qa\.pkl is no table of texts"):
        _load(tmp_path)
    with pytest.raises(DataError, match="split='paper' has no meaning for PathVQA"):
        _load(tmp_path, split="paper")

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's own data: a folder with its images and one table of questions.

    manifest.csv     image,question,answer[,answer_type][,split][,question_type]     with a header
    manifest.jsonl   {"image": "scans/1.png", "question": "...", "answer": "..."}    one object per line

image: path relative to the folder, and the id of the image. answer_type: OPEN or CLOSED; without it yes and no are
closed. split: train, validation (or val, validate) or test; without the column the images are split by
`test_fraction` and `validation_fraction`, and with it a missing validation set is cut out of train.
Without `root` the folder is FEDPEFT_DATA/<site>, or FEDPEFT_DATA itself.
"""

from __future__ import annotations

from pathlib import Path

from fedpeft.data.answers import closed_by_answer, closed_by_type, normalize
from fedpeft.data.errors import DataError
from fedpeft.data.folders import dataset_folder, image_file, inside
from fedpeft.data.partition import arrange, pooled
from fedpeft.data.records import Row, csv_rows, jsonl_rows, reading
from fedpeft.data.registry import DataSet
from fedpeft.data.schema import DataSettings, Example, SiteData

_KEYS = ("image", "question", "answer")
_SPLITS = {"train": "train", "validation": "validation", "validate": "validation", "val": "validation", "test": "test"}


def load(settings: DataSettings) -> SiteData:
    """Load a site's own folder.

    Raises:
        DataError: missing folder, manifest, column or image, a value that is not allowed, or an empty split.
    """
    if settings.split == "paper":
        raise DataError("split='paper' has no meaning for a manifest; choose published or image_disjoint.")
    root = dataset_folder(settings, (settings.site, ".") if settings.site else (".",))
    rows = _rows(root)
    labels = [_split_of(row) for row in rows]
    examples = [_example(row, root) for row in rows]
    if None in labels and any(labels):
        row = rows[labels.index(None)]
        raise DataError(f"{row.where}: 'split' is empty while other rows have one; fill it in.")
    if None in labels:
        splits = pooled(examples, settings)
    else:
        parts = {
            name: [example for example, label in zip(examples, labels, strict=True) if label == name]
            for name in ("train", "validation", "test")
        }
        splits = arrange(settings, train=parts["train"], test=parts["test"], validation=parts["validation"] or None)
    site = settings.site or root.resolve().name
    return SiteData(site, *splits, f"the site's own data ({site}), real data as its manifest lists them")


def _rows(root: Path) -> list[Row]:
    files = [root / name for name in ("manifest.csv", "manifest.jsonl") if (root / name).is_file()]
    if not files:
        raise DataError(f"{root} holds neither 'manifest.csv' nor 'manifest.jsonl'; put the site's table there.")
    if len(files) > 1:
        raise DataError(f"Both {files[0]} and {files[1]} are there; keep one of them.")
    return csv_rows(files[0], _KEYS) if files[0].suffix == ".csv" else jsonl_rows(files[0], _KEYS)


def _split_of(row: Row) -> str | None:
    label = row.values.get("split")
    if label is None or label == "":
        return None
    if not isinstance(label, str) or label.strip().lower() not in _SPLITS:
        raise DataError(f"{row.where}: split is {label!r}; allowed are train, validation and test.")
    return _SPLITS[label.strip().lower()]


def _example(row: Row, root: Path) -> Example:
    name = inside(root, row.text("image"), where=row.where)
    with reading(row):
        answer = normalize(row.values["answer"])
        kind = row.values.get("answer_type")
        closed = closed_by_type(kind) if kind else closed_by_answer(answer)
    return Example(
        image=image_file(root, name, where=row.where),
        question=row.text("question"),
        answer=answer,
        closed=closed,
        image_id=name,
        question_type=row.label("question_type"),
    )


DATASET = DataSet(load=load)

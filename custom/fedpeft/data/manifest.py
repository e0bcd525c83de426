# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's own data: a folder with its images and one table, of questions, of classes or of labels.

    manifest.csv     image,question,answer[,answer_type][,split][,question_type][,patient]     with a header
                     image,label[,split][,patient]             one class for each image
                     image,labels[,text][,split][,patient]     any number of labels, joined by |, and a report
    manifest.jsonl   {"image": "scans/1.png", "question": "...", "answer": "..."}    one object per line, the same keys

image: path relative to the folder, and the id of the image. answer_type: OPEN or CLOSED; without it yes and no are
closed. split: train, validation (or validate, valid, val, dev) or test; without the column the images are split by
`test_fraction` and `validation_fraction`, and with it a missing validation set is cut out of train. patient: whose
images never are in two of the splits that are made here. An image may have no label: the field is empty then.
Without `root` the folder is FEDPEFT_DATA/<site>, or FEDPEFT_DATA itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedpeft.data.answers import closed_by_answer, closed_by_type, normalize
from fedpeft.data.errors import DataError
from fedpeft.data.folders import dataset_folder, image_file, inside
from fedpeft.data.labelled_images import class_example, label_example
from fedpeft.data.partition import SPELLINGS, arrange, pooled
from fedpeft.data.records import Row, csv_rows, jsonl_rows, reading
from fedpeft.data.registry import DataSet
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import DataSettings
from fedpeft.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1

_IMAGE = "image"


class Kind(NamedTuple):
    """What a table is about: the keys that it needs beside the image, an example of a row, and the metric."""

    keys: tuple[str, ...]
    example: Callable[[Row, Path, str], Example]
    metric: str


def load(settings: DataSettings) -> SiteData:
    """Load a site's own folder.

    Raises:
        DataError: missing folder, manifest, column or image, a value that is not allowed, or an empty split.
    """
    if settings.split == "paper":
        raise DataError("split='paper' has no meaning for a manifest; choose published or image_disjoint.")
    root = dataset_folder(settings, (settings.site, ".") if settings.site else (".",))
    rows, kind = _rows(root)
    splits_of_rows = [_split_of(row) for row in rows]
    examples = [_example(row, root, kind) for row in rows]
    if None in splits_of_rows and any(splits_of_rows):
        row = rows[splits_of_rows.index(None)]
        raise DataError(f"{row.where}: 'split' is empty while other rows have one; fill it in.")
    if None in splits_of_rows:
        splits = pooled(examples, settings)
    else:
        parts = {
            name: [example for example, split in zip(examples, splits_of_rows, strict=True) if split == name]
            for name in ("train", "validation", "test")
        }
        splits = arrange(settings, train=parts["train"], test=parts["test"], validation=parts["validation"] or None)
    site = settings.site or root.resolve().name
    source = f"the site's own data ({site}), real data as its manifest lists them"
    return SiteData(site, *splits, source, labels=_labels(settings, examples), metric=kind.metric)


def _rows(root: Path) -> tuple[list[Row], Kind]:
    files = [root / name for name in ("manifest.csv", "manifest.jsonl") if (root / name).is_file()]
    if not files:
        raise DataError(f"{root} holds neither 'manifest.csv' nor 'manifest.jsonl'; put the site's table there.")
    if len(files) > 1:
        raise DataError(f"Both {files[0]} and {files[1]} are there; keep one of them.")
    rows = (csv_rows if files[0].suffix == ".csv" else jsonl_rows)(files[0], ())
    there = set(rows[0].values)
    kind = next((kind for kind in KINDS if there.intersection(kind.keys)), KINDS[0])
    for row in rows:
        if missing := [key for key in (_IMAGE, *kind.keys) if key not in row.values]:
            needed = "; or ".join(", ".join((_IMAGE, *kind.keys)) for kind in KINDS)
            raise DataError(f"{row.where}: {missing[0]!r} is missing; a manifest needs {needed}.")
    return rows, kind


def _split_of(row: Row) -> str | None:
    label = row.values.get("split")
    if label is None or label == "":
        return None
    if not isinstance(label, str) or label.strip().lower() not in SPELLINGS:
        raise DataError(f"{row.where}: split is {label!r}; allowed are train, validation and test.")
    return SPELLINGS[label.strip().lower()]


def _example(row: Row, root: Path, kind: Kind) -> Example:
    name = inside(root, row.text(_IMAGE), where=row.where)
    file = image_file(root, name, where=row.where)
    with reading(row):
        return kind.example(row, file, name)


def _question(row: Row, file: Path, name: str) -> Example:
    answer = normalize(row.values["answer"])
    answer_type = row.values.get("answer_type")
    return Example(
        image=file,
        question=row.text("question"),
        answer=answer,
        closed=closed_by_type(answer_type) if answer_type else closed_by_answer(answer),
        image_id=name,
        question_type=row.label("question_type"),
        group=row.label("patient"),
    )


def _class(row: Row, file: Path, name: str) -> Example:
    return class_example(file, row.values["label"], image_id=name, group=row.label("patient"))


def _labelled(row: Row, file: Path, name: str) -> Example:
    given = row.values["labels"]
    listed = given if isinstance(given, list) else "" if given is None else given
    listed = listed.split("|") if isinstance(listed, str) else listed
    if not isinstance(listed, list) or not all(isinstance(label, str) for label in listed):
        raise DataError("'labels' is neither text nor a list of texts")
    labels = {label.strip() for label in listed} - {""}
    return label_example(file, labels, image_id=name, group=row.label("patient"), text=row.label("text"))


KINDS = (
    Kind(("question", "answer"), _question, ACCURACY),
    Kind(("labels",), _labelled, MACRO_F1),
    Kind(("label",), _class, BALANCED_ACCURACY),
)


def _labels(settings: DataSettings, examples: list[Example]) -> tuple[str, ...]:
    """Return the labels of the job, or where it names none those of the table; empty: there are none in this kind."""
    found = {label for example in examples if example.labels is not None for label in example.labels}
    if all(example.labels is None for example in examples):
        return ()
    if settings.answers and (others := found - set(settings.answers)):
        raise DataError(f"{len(others)} labels of the manifest are not in data.answers; add them.")
    if not found:
        raise DataError("no image of the manifest has a label; fill in 'labels'.")
    return tuple(sorted(settings.answers or found))


DATASET = DataSet(load=load)

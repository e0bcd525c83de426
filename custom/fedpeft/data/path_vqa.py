# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""PathVQA (He et al., 2020): 32 thousand questions about 5 thousand images of pathology, from textbooks and a library.

    pvqa/qas/{train,val,test}/{train,val,test}_qa.pkl     [{"image": "train_0422", "question": "...", "answer": "..."}]
    pvqa/images/{train,val,test}/train_0422.jpg

The copy on the hub (`flaviagiammarino/path-vqa`) has other files: `dataset: hugging_face` reads it. There is no answer
type: closed is what is answered by yes or no. A row without an image's name, question or answer is counted and left
out. The papers do not use this set, so `split="paper"` is refused.

The tables are pickles. A pickle can run any program, so these are read with a reader that makes lists, mappings, texts
and numbers, and nothing else.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import ACCURACY
from fedpeft.data.answers import clean_values, closed_by_answer, normalize
from fedpeft.data.folders import dataset_folder, find, holds, images_below, missing_image, tree
from fedpeft.data.partition import arrange
from fedpeft.data.records import INCOMPLETE, Row, complete, reading
from fedpeft.data.registry import DataSet, Origin
from fedpeft.data.schema import Example, SiteData, added
from fedpeft.data.settings import DataSettings

FOLDERS = ("path_vqa", "PathVQA", "pvqa")
_KEYS = ("image", "question", "answer")


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds {module}.{name}")


def load(settings: DataSettings) -> SiteData:
    """Load PathVQA as one site."""
    if settings.split == "paper":
        raise DataError("split='paper' has no meaning for PathVQA; choose published or image_disjoint.")
    root = dataset_folder(settings, FOLDERS)
    images = find(root, "images", folder=True)
    read = {part: _examples(find(root, f"{part}_qa.pkl"), images / part) for part in ("train", "val", "test")}
    train, validation, test = (examples for examples, _ in read.values())
    splits = arrange(settings, train=train, validation=validation, test=test)
    split = "split by image" if settings.split == "image_disjoint" else "published split"
    left_out = added([(INCOMPLETE, sum(empty for _, empty in read.values()))])
    source = f"PathVQA (He et al., 2020), real data, {split}"
    return SiteData(settings.site or "path-vqa", *splits, source, left_out=left_out)


def _examples(file: Path, folder: Path) -> tuple[tuple[Example, ...], int]:
    """Return the examples of one split, and the number of rows that lack a part."""
    rows = _rows(file)
    whole = complete(rows, _KEYS)
    known = images_below(folder)
    return tuple(_example(row, folder, known) for row in whole), len(rows) - len(whole)


def _rows(file: Path) -> list[Row]:
    try:
        records = _PlainUnpickler(io.BytesIO(file.read_bytes())).load()
    except OSError as error:
        raise DataError(f"The file {file} cannot be read ({error.strerror}); check its permissions.") from error
    except Exception as error:  # a broken pickle raises nearly anything
        raise DataError(f"{file} is no table of texts ({str(error)[:80]}); put the publisher's file there.") from error
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise DataError(f"{file} is not a list of records; put the publisher's file there.")
    return [Row(f"{file}, record {number}", clean_values(record)) for number, record in enumerate(records, 1)]


def _example(row: Row, folder: Path, known: dict[str, Path]) -> Example:
    image = row.text("image").removesuffix(".jpg")
    if image not in known:
        raise missing_image(folder / f"{image}.jpg", where=row.where)
    with reading(row):
        answer = normalize(row.values["answer"])
    return Example(
        image=known[image],
        question=row.text("question"),
        answer=answer,
        closed=closed_by_answer(answer),
        image_id=image,
    )


ORIGIN = Origin(
    title="PathVQA",
    address="github.com/UCSD-AI4H/PathVQA, the hub's `flaviagiammarino/path-vqa`",
    terms="MIT on the hub; images of textbooks",
)
DATASET = DataSet(
    load=load,
    metric=ACCURACY,
    origin=ORIGIN,
    recognized=holds(("*/train_qa.pkl", "*/images/")),
    layout=tree(__doc__),
    folders=FOLDERS,
)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""SLAKE (Liu et al., ISBI 2021): English questions about 642 radiology images, with knowledge questions.

    Slake1.0/{train,validate,test}.json, Slake1.0/imgs/xmlab1/source.jpg

The hub's copy calls the second file validation.json. Only rows with q_lang "en" are used: the Chinese rows split the
images differently and would bring 142 test images into training. CLOSED is not only yes/no here. The papers use the
published split as it is.
"""

from __future__ import annotations

from pathlib import Path

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import ACCURACY
from fedpeft.data.answers import closed_by_type, normalize
from fedpeft.data.folders import dataset_folder, holds, image_file, tree
from fedpeft.data.partition import arrange
from fedpeft.data.records import INCOMPLETE, Row, complete, json_rows, reading
from fedpeft.data.registry import DataSet, Origin
from fedpeft.data.schema import Example, SiteData, added
from fedpeft.data.settings import DataSettings

FOLDERS = ("slake/Slake1.0", "slake", "Slake1.0")
_KEYS = ("img_name", "question", "answer", "q_lang", "answer_type")


def load(settings: DataSettings) -> SiteData:
    """Load the English part of SLAKE."""
    root = dataset_folder(settings, FOLDERS)
    if (root / "Slake1.0").is_dir():
        root = root / "Slake1.0"
    held_out = next((root / n for n in ("validate.json", "validation.json") if (root / n).is_file()), None)
    if held_out is None:
        raise DataError(f"{root} holds neither 'validate.json' nor 'validation.json'; unpack Slake1.0 there.")
    read = [_english(path) for path in (root / "train.json", held_out, root / "test.json")]
    train, validation, test = (examples for examples, *_ in read)
    train, validation, test = arrange(settings, train=train, validation=validation, test=test)
    split = "split by image" if settings.split == "image_disjoint" else "published split"
    source = f"SLAKE (Liu et al., ISBI 2021), real data, English questions, {split}"
    left_out = added(
        [
            ("the question is not in English", sum(others for _, others, _ in read)),
            (INCOMPLETE, sum(incomplete for *_, incomplete in read)),
        ]
    )
    return SiteData(settings.site or "slake", train, validation, test, source, left_out=left_out)


def _english(path: Path) -> tuple[tuple[Example, ...], int, int]:
    """Return the English examples of a file, and the numbers of its rows in other languages and of incomplete ones."""
    rows = json_rows(path, _KEYS)
    english = [row for row in rows if row.text("q_lang") == "en"]
    if not english:
        raise DataError(f"{path} holds no row with q_lang 'en'; put the publisher's file there.")
    whole = complete(english, ("img_name", "question", "answer"))
    examples = tuple(_example(row, path.parent / "imgs") for row in whole)
    return examples, len(rows) - len(english), len(english) - len(whole)


def _example(row: Row, folder: Path) -> Example:
    name = row.text("img_name")
    with reading(row):
        answer, closed = normalize(row.values["answer"]), closed_by_type(row.values["answer_type"])
    return Example(
        image=image_file(folder, name, where=row.where),
        question=row.text("question"),
        answer=answer,
        closed=closed,
        image_id=Path(name).parent.as_posix(),
        question_type=row.label("content_type"),
    )


ORIGIN = Origin(title="SLAKE", address="med-vqa.com/slake, the hub's `BoKelvin/SLAKE`", terms="CC BY 4.0 on the hub")
DATASET = DataSet(
    load=load,
    metric=ACCURACY,
    origin=ORIGIN,
    recognized=holds(("/imgs/", "/validate.json"), ("/imgs/", "/validation.json"), "/Slake1.0/imgs/"),
    layout=tree(__doc__),
    folders=FOLDERS,
)

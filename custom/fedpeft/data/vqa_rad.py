# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""VQA-RAD (Lau et al., Sci Data 2018): 2248 clinical questions about 315 images of head, chest and abdomen.

Two layouts are read, as downloaded:

    VQA_RAD Dataset Public.json, VQA_RAD Image Folder/      the owners' flat list; test rows have phrase_type test_*
    trainset.json, testset.json, images/                    as MEVF passes it on

MEVF's trainset.json has 3064 rows: 1267 of them (phrase_type `frame`) are templates that the owners did not publish as
pairs, and are left out. What remains is the official 1797 + 451. Where both layouts lie there, the owners' is read.
The papers print 1799 + 449; `split="paper"` is the official split.

202 of the 203 published test images are in train as well: use `split="image_disjoint"` for whatever claims to
generalize.

As several sites: head, chest-a, chest-b, abd-a, abd-b (`settings.site`). The halves a and b have no image in common,
whatever the seed; vqa-rad (or None) is all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import ACCURACY
from fedpeft.data.answers import closed_by_type, normalize
from fedpeft.data.folders import dataset_folder, holds, image_file, tree
from fedpeft.data.partition import arrange, halves
from fedpeft.data.records import INCOMPLETE, Row, complete, json_rows, reading
from fedpeft.data.registry import DataSet, Origin
from fedpeft.data.schema import Example, SiteData, added
from fedpeft.data.settings import DataSettings

FOLDERS = ("vqa_rad", "VQA-RAD", "VQA_RAD", "data_RAD")
WHOLE = "vqa-rad"
PARTS = {
    "head": ("HEAD", None),
    "chest-a": ("CHEST", 0),
    "chest-b": ("CHEST", 1),
    "abd-a": ("ABD", 0),
    "abd-b": ("ABD", 1),
}

_OFFICIAL = "VQA_RAD Dataset Public.json"
_IMAGE_FOLDERS = ("VQA_RAD Image Folder", "images")
_PHRASES = ("freeform", "para")
_KEYS = ("image_name", "image_organ", "question", "answer", "answer_type", "phrase_type")
_MISSPELLED = {"PRSE": "PRES", "ATRIB": "ATTRIB"}


def load(settings: DataSettings) -> SiteData:
    """Load all of VQA-RAD or one of its five parts."""
    site = settings.site or WHOLE
    if site != WHOLE and site not in PARTS:
        raise DataError(f"site={site!r} is not a part of VQA-RAD; choose one of {WHOLE}, {', '.join(PARTS)}.")
    root = dataset_folder(settings, FOLDERS)
    train_rows, test_rows, templates = _published(root)
    published = len(train_rows) + len(test_rows)
    train_rows, test_rows = (complete(rows, ("image_name", "question", "answer")) for rows in (train_rows, test_rows))
    others = len(train_rows) + len(test_rows)
    if site != WHOLE:
        images = _part(site, [*train_rows, *test_rows])
        train_rows, test_rows = ([row for row in rows if _image_id(row) in images] for rows in (train_rows, test_rows))
    left_out = added(
        [
            ("a template that the owners do not publish as a pair", templates),
            (INCOMPLETE, published - others),
            ("it belongs to another part of VQA-RAD", others - len(train_rows) - len(test_rows)),
        ]
    )
    folder = _image_folder(root)
    train, validation, test = arrange(settings, train=_examples(train_rows, folder), test=_examples(test_rows, folder))
    split = "split by image" if settings.split == "image_disjoint" else "published split"
    source = f"VQA-RAD (Lau et al., Sci Data 2018), real data, {'all of it' if site == WHOLE else site}, {split}"
    return SiteData(site, train, validation, test, source, left_out=left_out)


def _published(root: Path) -> tuple[list[Row], list[Row], int]:
    """Return the official training and test rows, and the number of the others."""
    if (root / _OFFICIAL).is_file():
        rows = json_rows(root / _OFFICIAL, _KEYS)
        tests = [row.text("phrase_type").startswith("test_") for row in rows]
        train = [row for row, is_test in zip(rows, tests, strict=True) if not is_test]
        test = [row for row, is_test in zip(rows, tests, strict=True) if is_test]
    elif (root / "trainset.json").is_file():
        train, test = json_rows(root / "trainset.json", _KEYS), json_rows(root / "testset.json", _KEYS)
    else:
        raise DataError(f"{root} holds neither {_OFFICIAL!r} nor 'trainset.json'; unpack VQA-RAD there.")
    official = [[row for row in rows if _is_official(row)] for rows in (train, test)]
    return official[0], official[1], len(train) + len(test) - sum(map(len, official))


def _is_official(row: Row) -> bool:
    return row.text("phrase_type").removeprefix("test_") in _PHRASES


def _image_folder(root: Path) -> Path:
    for name in _IMAGE_FOLDERS:
        if (root / name).is_dir():
            return root / name
    raise DataError(f"{root} holds no image folder {' or '.join(map(repr, _IMAGE_FOLDERS))}; unpack it there.")


def _image_id(row: Row) -> str:
    return Path(row.text("image_name")).stem


def _part(site: str, rows: Sequence[Row]) -> frozenset[str]:
    organ, half = PARTS[site]
    images = frozenset(_image_id(row) for row in rows if row.text("image_organ").upper() == organ)
    return images if half is None else halves(images)[half]


def _examples(rows: Sequence[Row], folder: Path) -> tuple[Example, ...]:
    return tuple(_example(row, folder) for row in rows)


def _example(row: Row, folder: Path) -> Example:
    kinds = [kind.strip() for kind in row.label("question_type").upper().split(",")]
    with reading(row):
        answer, closed = normalize(row.values["answer"]), closed_by_type(row.values["answer_type"])
    return Example(
        image=image_file(folder, row.text("image_name"), where=row.where),
        question=row.text("question"),
        answer=answer,
        closed=closed,
        image_id=_image_id(row),
        question_type=", ".join(_MISSPELLED.get(kind, kind) for kind in kinds),
    )


ORIGIN = Origin(title="VQA-RAD", address="osf.io/89kps", terms="CC0")
DATASET = DataSet(
    load=load,
    metric=ACCURACY,
    origin=ORIGIN,
    recognized=holds(f"/{_OFFICIAL}", ("/trainset.json", "/testset.json")),
    layout=tree(__doc__),
    folders=FOLDERS,
    sites=tuple(PARTS),
    whole=WHOLE,
)

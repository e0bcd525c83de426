# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Published questions about medical images, a table and a folder of images each: VQA-RAD, SLAKE, PathVQA."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from fedpeft.core.errors import DataError
from fedpeft.data.folders import dataset_folder, either, find, image_file, images_below, listed_image
from fedpeft.data.loaders import published_set, question_example, refuse_paper, site_of_questions
from fedpeft.data.partition import ANOTHERS, halves
from fedpeft.data.records import INCOMPLETE, Row, clean_row, complete, json_rows
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import DataSettings

RAD = "vqa-rad"
PARTS = {
    "head": ("HEAD", None),
    "chest-a": ("CHEST", 0),
    "chest-b": ("CHEST", 1),
    "abd-a": ("ABD", 0),
    "abd-b": ("ABD", 1),
}
_OFFICIAL = "VQA_RAD Dataset Public.json"
_RAD_IMAGES = ("VQA_RAD Image Folder", "images")
_PHRASES = ("freeform", "para")
_RAD_KEYS = ("image_name", "image_organ", "question", "answer", "answer_type", "phrase_type")
_MISSPELLED = {"PRSE": "PRES", "ATRIB": "ATTRIB"}


def load_vqa_rad(settings: DataSettings) -> SiteData:
    """VQA-RAD (Lau et al., Sci Data 2018): 2248 clinical questions about 315 images of head, chest and abdomen.

    Two layouts are read, as downloaded:

        VQA_RAD Dataset Public.json, VQA_RAD Image Folder/      the owners' flat list; test rows have phrase_type test_*
        trainset.json, testset.json, images/                    as MEVF passes it on

    MEVF's trainset.json has 3064 rows: 1267 of them (phrase_type `frame`) are templates that the owners did not publish
    as pairs, and are left out. The official 1797 + 451 remain. Where both layouts are there, the owners' is read. The
    papers print 1799 + 449; `split="paper"` is the official split.

    202 of the 203 published test images are in train as well: use `split="image_disjoint"` for whatever claims to
    generalize.

    As several sites: head, chest-a, chest-b, abd-a, abd-b (`settings.site`). The halves a and b share no image,
    whatever the seed; vqa-rad (or None) is all of it.
    """
    site = settings.site or RAD
    if site != RAD and site not in PARTS:
        raise DataError(f"site={site!r} is not a part of VQA-RAD; choose one of {RAD}, {', '.join(PARTS)}.")
    root = dataset_folder(settings)
    published = _published(root)
    official = [[row for row in rows if _is_official(row)] for rows in published]
    whole = [complete(rows, ("image_name", "question", "answer")) for rows in official]
    own = whole
    if site != RAD:
        images = _part(site, [row for rows in whole for row in rows])
        own = [[row for row in rows if _image_id(row) in images] for rows in whole]
    counts = [sum(map(len, rows)) for rows in (published, official, whole, own)]
    folder = next((root / name for name in _RAD_IMAGES if (root / name).is_dir()), None)
    if folder is None:
        raise DataError(f"{root} holds no image folder {' or '.join(map(repr, _RAD_IMAGES))}; unpack it there.")
    train, test = ([_rad_example(row, folder) for row in rows] for rows in own)
    return site_of_questions(
        settings,
        RAD,
        f"VQA-RAD (Lau et al., Sci Data 2018), real data, {'all of it' if site == RAD else site}",
        train=train,
        test=test,
        left_out=[
            ("a template that the owners do not publish as a pair", counts[0] - counts[1]),
            (INCOMPLETE, counts[1] - counts[2]),
            (ANOTHERS, counts[2] - counts[3]),
        ],
    )


def _published(root: Path) -> tuple[list[Row], list[Row]]:
    """Return the training and test rows."""
    file = either(root, _OFFICIAL, "trainset.json", remedy="unpack VQA-RAD there")
    if file.name == _OFFICIAL:
        rows = json_rows(file, _RAD_KEYS)
        tests = [row.text("phrase_type").startswith("test_") for row in rows]
        train = [row for row, is_test in zip(rows, tests, strict=True) if not is_test]
        return train, [row for row, is_test in zip(rows, tests, strict=True) if is_test]
    return json_rows(file, _RAD_KEYS), json_rows(root / "testset.json", _RAD_KEYS)


def _is_official(row: Row) -> bool:
    return row.text("phrase_type").removeprefix("test_") in _PHRASES


def _image_id(row: Row) -> str:
    return Path(row.text("image_name")).stem


def _part(site: str, rows: list[Row]) -> frozenset[str]:
    organ, half = PARTS[site]
    images = frozenset(_image_id(row) for row in rows if row.text("image_organ").upper() == organ)
    return images if half is None else halves(images)[half]


def _rad_example(row: Row, folder: Path) -> Example:
    kinds = [kind.strip() for kind in row.label("question_type").upper().split(",")]
    return question_example(
        row,
        image_file(folder, row.text("image_name"), where=row.where),
        [row.values["answer"]],
        image_id=_image_id(row),
        answer_type=row.values["answer_type"],
        question_type=", ".join(_MISSPELLED.get(kind, kind) for kind in kinds),
    )


VQA_RAD = published_set("vqa_rad", load_vqa_rad, sites=tuple(PARTS), whole=RAD)


def load_slake(settings: DataSettings) -> SiteData:
    """SLAKE (Liu et al., ISBI 2021): English questions about 642 radiology images, with knowledge questions.

        Slake1.0/{train,validate,test}.json, Slake1.0/imgs/xmlab1/source.jpg

    The hub's copy calls the second file validation.json. Only rows with q_lang "en" are used: the Chinese rows split
    the images differently and would bring 142 test images into training. CLOSED is not only yes/no here. The papers use
    the published split as it is.
    """
    root = dataset_folder(settings)
    if (root / "Slake1.0").is_dir():
        root = root / "Slake1.0"
    validation = either(root, "validate.json", "validation.json", remedy="unpack Slake1.0 there")
    parts, others, incomplete = {}, 0, 0
    for part, path in (("train", root / "train.json"), ("validation", validation), ("test", root / "test.json")):
        rows = json_rows(path, ("img_name", "question", "answer", "q_lang", "answer_type"))
        english = [row for row in rows if row.text("q_lang") == "en"]
        if not english:
            raise DataError(f"{path} holds no row with q_lang 'en'; put the publisher's file there.")
        whole = complete(english, ("img_name", "question", "answer"))
        parts[part] = [_slake_example(row, root / "imgs") for row in whole]
        others, incomplete = others + len(rows) - len(english), incomplete + len(english) - len(whole)
    return site_of_questions(
        settings,
        "slake",
        "SLAKE (Liu et al., ISBI 2021), real data, English questions",
        **parts,
        left_out=[("the question is not in English", others), (INCOMPLETE, incomplete)],
    )


def _slake_example(row: Row, folder: Path) -> Example:
    name = row.text("img_name")
    return question_example(
        row,
        image_file(folder, name, where=row.where),
        [row.values["answer"]],
        image_id=Path(name).parent.as_posix(),
        answer_type=row.values["answer_type"],
        question_type=row.label("content_type"),
    )


SLAKE = published_set("slake", load_slake)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds {module}.{name}")


def load_path_vqa(settings: DataSettings) -> SiteData:
    """PathVQA (He et al., 2020): 32 thousand questions about 5 thousand images of pathology.

        pvqa/qas/{train,val,test}/{train,val,test}_qa.pkl     [{"image": "train_0422", "question": "...", "answer": "..."}]
        pvqa/images/{train,val,test}/train_0422.jpg

    The images are those of textbooks and a library. The copy on the hub (`flaviagiammarino/path-vqa`) has other files: `dataset: hugging_face` reads it. There is no
    answer type: questions with the answer yes or no are closed. A row without an image's name, question or answer is counted
    and left out. The papers do not use this set, so `split="paper"` is refused.

    The tables are pickles. A pickle can run any program, so this reader makes only lists, mappings, texts and numbers.
    """  # noqa: E501
    refuse_paper(settings, "PathVQA")
    root = dataset_folder(settings)
    images = find(root, "images", folder=True)
    parts, incomplete = [], 0
    for part in ("train", "val", "test"):
        rows = _pickled_rows(find(root, f"{part}_qa.pkl"))
        whole = complete(rows, ("image", "question", "answer"))
        known = images_below(images / part)
        parts.append([_path_example(row, images / part, known) for row in whole])
        incomplete += len(rows) - len(whole)
    return site_of_questions(
        settings,
        "path-vqa",
        "PathVQA (He et al., 2020), real data",
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        left_out=[(INCOMPLETE, incomplete)],
    )


def _pickled_rows(file: Path) -> list[Row]:
    try:
        records = _PlainUnpickler(io.BytesIO(file.read_bytes())).load()
    except OSError as error:
        raise DataError(f"The file {file} cannot be read ({error.strerror}); check its permissions.") from error
    except Exception as error:  # a broken pickle raises nearly anything
        raise DataError(f"{file} is no table of texts ({str(error)[:80]}); put the publisher's file there.") from error
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise DataError(f"{file} is not a list of records; put the publisher's file there.")
    return [clean_row(Row(f"{file}, record {number}", record)) for number, record in enumerate(records, 1)]


def _path_example(row: Row, folder: Path, known: dict[str, Path]) -> Example:
    image = listed_image(known, folder, row.text("image"), where=row.where)
    return question_example(row, image, [row.values["answer"]], image_id=row.text("image").removesuffix(".jpg"))


PATH_VQA = published_set("path_vqa", load_path_vqa)

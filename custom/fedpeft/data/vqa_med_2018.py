# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""VQA-Med 2018 (ImageCLEF): 5413 + 500 pairs made from captions of PubMed Central, and a test set of 500 questions.

    VQAMed2018Train/{VQAMed2018Train-QA.csv,VQAMed2018Train-images/}
    VQAMed2018Valid/{VQAMed2018Valid-QA.csv,VQAMed2018Valid-images/}
    VQAMed2018Test/{VQAMed2018Test-QA-Eval.csv or VQAMed2018Test-QA.csv,VQAMed2018Test-images/}

Lines `number<tab>image<tab>question<tab>answer`, no header, ids without extension. Participants got the test questions
without answers (VQAMed2018Test-QA.csv): such questions are counted and left out, and `split="published"` needs the
organizers' file with the answers. The papers do not use this set, so `split="paper"` is refused.
"""

from __future__ import annotations

from pathlib import Path

from fedpeft.core.metrics import ACCURACY
from fedpeft.data.errors import DataError
from fedpeft.data.folders import contains, dataset_folder, find, images_below
from fedpeft.data.glance import holds, tree
from fedpeft.data.partition import arrange
from fedpeft.data.records import bar_rows
from fedpeft.data.registry import DataSet, Origin
from fedpeft.data.schema import Example, SiteData, added
from fedpeft.data.settings import DataSettings
from fedpeft.data.vqa_med import example, without_incomplete

FOLDERS = ("vqa_med_2018", "VQA-Med-2018")
_WITH_ANSWERS = "VQAMed2018Test-QA-Eval.csv"
_FIELDS = ("number", "id", "question")


def load(settings: DataSettings) -> SiteData:
    """Load VQA-Med 2018 as one site.

    Raises:
        DataError: missing folder, file or image, a line that is not a pair, no test answers, or an empty split.
    """
    if settings.split == "paper":
        raise DataError("split='paper' has no meaning for VQA-Med 2018; choose published or image_disjoint.")
    root = dataset_folder(settings, FOLDERS)
    tested = _WITH_ANSWERS if contains(root, _WITH_ANSWERS) else "VQAMed2018Test-QA.csv"
    files = {"Train": "VQAMed2018Train-QA.csv", "Valid": "VQAMed2018Valid-QA.csv", "Test": tested}
    read = {part: _pairs(find(root, file), root, f"VQAMed2018{part}-images") for part, file in files.items()}
    test, _ = read["Test"]
    if not test and settings.split == "published":
        raise DataError(
            f"{find(root, tested)} has no answers; put the organizers' {_WITH_ANSWERS!r} there, or set "
            f"split='image_disjoint' to cut a test set out of the pairs that have one."
        )
    splits = arrange(settings, train=read["Train"][0], validation=read["Valid"][0], test=test)
    split = "split by image" if settings.split == "image_disjoint" else "published split"
    left_out = added([("the question has no published answer", sum(without for _, without in read.values()))])
    source = f"VQA-Med 2018 (ImageCLEF), real data, {split}"
    return SiteData(settings.site or "vqa-med-2018", *splits, source, left_out=left_out)


def _pairs(file: Path, root: Path, images: str) -> tuple[tuple[Example, ...], int]:
    """Return the questions of a file that have an answer, and the number of the others."""
    rows = bar_rows(file, _FIELDS, alternatives=True, separator="\t")
    if long := [row for row in rows if len(row.values["alternatives"]) > 1]:
        raise DataError(f"{long[0].where}: it has more than four fields; correct that row.")
    answered = [row for row in rows if row.values["alternatives"]]
    folder = find(root, images, folder=True)
    known = images_below(folder)
    examples = (
        example(row, row.values["alternatives"][:1], folder=folder, images=known, question_type="") for row in answered
    )
    [whole], _ = without_incomplete(tuple(examples))
    return whole, len(rows) - len(whole)


ORIGIN = Origin(
    title="VQA-Med 2018", address="ImageCLEF, after registration", terms="the images are those of PubMed Central"
)
DATASET = DataSet(
    load=load,
    metric=ACCURACY,
    origin=ORIGIN,
    recognized=holds(("*/VQAMed2018Train-QA.csv", "*/VQAMed2018Valid-QA.csv")),
    layout=tree(__doc__),
    folders=FOLDERS,
)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""VQA-Med 2019 (ImageCLEF): modality, plane, organ and abnormality; 12792 + 2000 pairs and a test set of 500.

    ImageClef-2019-VQA-Med-Training/{All_QA_Pairs_train.txt,Train_images/,QAPairsByCategory/C1_Modality_train.txt,...}
    ImageClef-2019-VQA-Med-Validation/{All_QA_Pairs_val.txt,Val_images/,QAPairsByCategory/C1_Modality_val.txt,...}
    VQAMed2019Test/{VQAMed2019_Test_Questions_w_Ref_Answers.txt,VQAMed2019_Test_Images/}

The category of a training question comes from the files by category; where All_QA_Pairs is absent they are read in its
place, where they are absent the category stays empty. The test file has `id|category|question|answer`, and `#` between
the accepted answers. `split="paper"`: train and validation together (14792 pairs) against the test set of 500.
"""

from __future__ import annotations

from pathlib import Path

from fedpeft.core.metrics import ACCURACY
from fedpeft.data.folders import contains, dataset_folder, find, images_below
from fedpeft.data.glance import holds, tree
from fedpeft.data.partition import arrange
from fedpeft.data.records import Row, bar_rows
from fedpeft.data.registry import DataSet, Origin
from fedpeft.data.schema import SiteData, added
from fedpeft.data.settings import DataSettings
from fedpeft.data.vqa_med import Parts, example, without_incomplete

FOLDERS = ("vqa_med_2019", "VQA-Med-2019")
CATEGORIES = {"C1_Modality": "modality", "C2_Plane": "plane", "C3_Organ": "organ", "C4_Abnormality": "abnormality"}
_PAIR = ("id", "question", "answer")


def load(settings: DataSettings) -> SiteData:
    """Load VQA-Med 2019 as one site.

    Raises:
        DataError: missing folder, file or image, a line that is not a pair, or an empty split.
    """
    root = dataset_folder(settings, FOLDERS)
    (train, validation, test), incomplete = without_incomplete(
        _pairs(root, "train", "Train_images"), _pairs(root, "val", "Val_images"), _test(root)
    )
    if settings.split == "paper":
        train, validation = (*train, *validation), None
    train, validation, test = arrange(settings, train=train, validation=validation, test=test)
    split = {
        "published": "published split",
        "image_disjoint": "split by image",
        "paper": "train with validation against test",
    }[settings.split]
    source = f"VQA-Med 2019 (ImageCLEF), real data, {split}"
    return SiteData(settings.site or "vqa-med-2019", train, validation, test, source, left_out=added(incomplete))


def _pairs(root: Path, split: str, images: str) -> Parts:
    by_category = {
        category: bar_rows(find(root, f"{stem}_{split}.txt"), _PAIR)
        for stem, category in CATEGORIES.items()
        if contains(root, f"{stem}_{split}.txt")
    }
    everything = f"All_QA_Pairs_{split}.txt"
    if contains(root, everything) or not by_category:
        category_of = {_key(row): category for category, rows in by_category.items() for row in rows}
        rows = [(row, category_of.get(_key(row), "")) for row in bar_rows(find(root, everything), _PAIR)]
    else:
        rows = [(row, category) for category, rows in by_category.items() for row in rows]
    folder = find(root, images, folder=True)
    known = images_below(folder)
    return tuple(
        example(row, [row.values["answer"]], folder=folder, images=known, question_type=category)
        for row, category in rows
    )


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row.text(field) for field in _PAIR)


def _test(root: Path) -> Parts:
    rows = bar_rows(find(root, "VQAMed2019_Test_Questions_w_Ref_Answers.txt"), ("id", "category", "question", "answer"))
    folder = find(root, "VQAMed2019_Test_Images", folder=True)
    known = images_below(folder)
    return tuple(
        example(
            row,
            [answer for answer in row.text("answer").split("#") if answer.strip()],
            folder=folder,
            images=known,
            question_type=row.text("category").lower(),
        )
        for row in rows
    )


ORIGIN = Origin(
    title="VQA-Med 2019", address="the organizers, github.com/abachaa", terms="the images are those of MedPix"
)
DATASET = DataSet(
    load=load,
    metric=ACCURACY,
    origin=ORIGIN,
    recognized=holds(("*/Train_images/", "*/VQAMed2019_Test_Images/")),
    layout=tree(__doc__),
    folders=FOLDERS,
)

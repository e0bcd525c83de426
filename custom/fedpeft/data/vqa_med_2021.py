# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""VQA-Med 2021 (ImageCLEF, task 1): abnormality questions, one per image; a new validation set and a test set of 500.

    VQA-Med-2021-VQAnswering-Task1-New-ValidationSet.txt, ImageCLEF-2021-VQA-Med-New-Validation-Images/
    Task1-VQA-2021-TestSet-w-GroundTruth/{Task1-VQA-2021-TestSet-Questions.txt,Task1-VQA-2021-TestSet-ReferenceAnswers.txt,
        VQA-500-Images/ or images/VQA-500-Images/}

The challenge's training set is that of 2020: it belongs to the site vqa-med-2020 and is not repeated here. So
`split="published"` trains on the new validation set; `split="paper"` pools both sets (1000 pairs) and splits them
80:20. A reference line holds all accepted answers, separated by bars; the first is the one to learn.
"""

from __future__ import annotations

from fedpeft.core.metrics import ACCURACY
from fedpeft.data.folders import dataset_folder
from fedpeft.data.glance import holds, tree
from fedpeft.data.partition import arrange, pooled
from fedpeft.data.registry import DataSet, Origin
from fedpeft.data.schema import SiteData, added
from fedpeft.data.settings import DataSettings
from fedpeft.data.vqa_med import pairs, questions_with_references, without_incomplete

FOLDERS = ("vqa_med_2021", "VQA-Med-2021")


def load(settings: DataSettings) -> SiteData:
    """Load VQA-Med 2021 as one site.

    Raises:
        DataError: missing folder, file or image, a line that is not a pair, or an empty split.
    """
    root = dataset_folder(settings, FOLDERS)
    train = pairs(
        root,
        "VQA-Med-2021-VQAnswering-Task1-New-ValidationSet.txt",
        "ImageCLEF-2021-VQA-Med-New-Validation-Images",
    )
    test = questions_with_references(
        root,
        "Task1-VQA-2021-TestSet-Questions.txt",
        "Task1-VQA-2021-TestSet-ReferenceAnswers.txt",
        "VQA-500-Images",
    )
    (train, test), incomplete = without_incomplete(train, test)
    if settings.split == "paper":
        splits = pooled((*train, *test), settings)
        split = "validation and test pooled and split by image, as in the papers"
    else:
        splits = arrange(settings, train=train, test=test)
        split = "split by image" if settings.split == "image_disjoint" else "published split"
    source = f"VQA-Med 2021 (ImageCLEF), real data, {split}"
    return SiteData(settings.site or "vqa-med-2021", *splits, source, left_out=added(incomplete))


ORIGIN = Origin(
    title="VQA-Med 2021", address="the organizers, github.com/abachaa", terms="the images are those of MedPix"
)
DATASET = DataSet(
    load=load,
    metric=ACCURACY,
    origin=ORIGIN,
    recognized=holds(
        ("*/VQA-Med-2021-VQAnswering-Task1-New-ValidationSet.txt", "*/Task1-VQA-2021-TestSet-Questions.txt")
    ),
    layout=tree(__doc__),
    folders=FOLDERS,
)

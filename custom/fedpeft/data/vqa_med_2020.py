# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""VQA-Med 2020 (ImageCLEF, task 1): abnormality questions, one per image; 4000 + 500 + 500 pairs.

    VQA-Med-2020-Task1-VQAnswering-TrainVal-Sets/
        VQAMed2020-VQAnswering-TrainingSet/{VQAnswering_2020_Train_QA_pairs.txt,VQAnswering_2020_Train_images/}
        VQAMed2020-VQAnswering-ValidationSet/{VQAnswering_2020_Val_QA_Pairs.txt,VQAnswering_2020_Val_images/}
    VQAMed2020-Task1-VQAnswering-Test-{Questions,ReferenceAnswers}.txt, Task1-2020-VQAnswering-Test-Images/

The test files may lie in a folder of their own. `split="paper"` needs no training set: FedPIA and F3OCUS pool
validation and test (1000 pairs) and split them 80:20; which pairs went where they do not say, so `seed` draws them.
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

FOLDERS = ("vqa_med_2020", "VQA-Med-2020")


def load(settings: DataSettings) -> SiteData:
    """Load VQA-Med 2020 as one site.

    Raises:
        DataError: missing folder, file or image, a line that is not a pair, or an empty split.
    """
    root = dataset_folder(settings, FOLDERS)
    validation = pairs(root, "VQAnswering_2020_Val_QA_Pairs.txt", "VQAnswering_2020_Val_images")
    test = questions_with_references(
        root,
        "VQAMed2020-Task1-VQAnswering-Test-Questions.txt",
        "VQAMed2020-Task1-VQAnswering-Test-ReferenceAnswers.txt",
        "Task1-2020-VQAnswering-Test-Images",
    )
    if settings.split == "paper":
        (validation, test), incomplete = without_incomplete(validation, test)
        splits = pooled((*validation, *test), settings)
        split = "validation and test pooled and split by image, as in the papers"
    else:
        train = pairs(root, "VQAnswering_2020_Train_QA_pairs.txt", "VQAnswering_2020_Train_images")
        (train, validation, test), incomplete = without_incomplete(train, validation, test)
        splits = arrange(settings, train=train, validation=validation, test=test)
        split = "split by image" if settings.split == "image_disjoint" else "published split"
    source = f"VQA-Med 2020 (ImageCLEF), real data, {split}"
    return SiteData(settings.site or "vqa-med-2020", *splits, source, left_out=added(incomplete))


ORIGIN = Origin(
    title="VQA-Med 2020", address="the organizers, github.com/abachaa", terms="the images are those of MedPix"
)
DATASET = DataSet(
    load=load,
    metric=ACCURACY,
    origin=ORIGIN,
    recognized=holds(("*/VQAnswering_2020_Val_QA_Pairs.txt", "*/VQAMed2020-Task1-VQAnswering-Test-Questions.txt")),
    layout=tree(__doc__),
    folders=FOLDERS,
)

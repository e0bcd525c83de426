# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The VQA-Med challenges of 2018, 2019, 2020 and 2021 (ImageCLEF).

Readers that the VQA-Med challenges of 2019, 2020 and 2021 share: bar-separated pairs, ids, reference answers.

    synpic41148|what kind of image is this?|cta - ct angiography        a pair (id|question|answer)
    synpic42072|avascular necrosis|second answer                        reference answers (id|answer|answer...)

Lines have no header, ids no extension, line ends are LF or CRLF. There is no answer type: closed is what is answered
by yes or no.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import ACCURACY
from fedpeft.data.answers import closed_by_answer, is_missing, normalize
from fedpeft.data.folders import contains, dataset_folder, find, holds, images_below, missing_image, tree
from fedpeft.data.partition import arrange, pooled
from fedpeft.data.records import INCOMPLETE, Row, bar_rows, complete, reading
from fedpeft.data.registry import DataSet, Origin
from fedpeft.data.schema import Example, SiteData, added
from fedpeft.data.settings import DataSettings

Parts = tuple[Example | None, ...]  # None: an incomplete row


def pairs(root: Path, text: str, images: str) -> Parts:
    """Read the examples of a file with lines `id|question|answer[|further accepted answer...]`."""
    rows = bar_rows(find(root, text), ("id", "question", "answer"), alternatives=True)
    folder = find(root, images, folder=True)
    known = images_below(folder)
    return tuple(
        example(row, [row.values["answer"], *row.values["alternatives"]], folder=folder, images=known) for row in rows
    )


def questions_with_references(root: Path, questions: str, references: str, images: str) -> Parts:
    """Read the examples of a test set with its questions (`id|question`) and answers (`id|answer|...`) in two files."""
    question_file, answer_file = find(root, questions), find(root, references)
    question_rows = _once(bar_rows(question_file, ("id", "question")))
    answer_rows = _once(bar_rows(answer_file, ("id", "answer"), alternatives=True))
    unpaired = sorted(question_rows.keys() ^ answer_rows.keys())
    if unpaired:
        raise DataError(
            f"{unpaired[0]} is in only one of {question_file} and {answer_file}; put the owners' two files there."
        )
    folder = find(root, images, folder=True)
    known = images_below(folder)
    return tuple(
        example(
            row,
            [answer_rows[name].values["answer"], *answer_rows[name].values["alternatives"]],
            folder=folder,
            images=known,
        )
        for name, row in question_rows.items()
    )


def example(
    row: Row, answers: Sequence[str], *, folder: Path, images: Mapping[str, Path], question_type: str = "abnormality"
) -> Example | None:
    """Make an example of a row with `id` and `question`; the first answer is the one to learn, all are accepted.

    Returns None where the image, the question or every answer is missing.
    """
    given = [answer for answer in answers if not is_missing(answer)]
    if not given or not complete([row], ("id", "question")):
        return None
    image_id = row.text("id").removesuffix(".jpg")
    if image_id not in images:
        raise missing_image(folder / f"{image_id}.jpg", where=row.where)
    with reading(row):
        normal = tuple(dict.fromkeys(normalize(answer) for answer in given))
    return Example(
        image=images[image_id],
        question=row.text("question"),
        answer=normal[0],
        closed=closed_by_answer(normal[0]),
        image_id=image_id,
        question_type=question_type,
        alternatives=normal[1:],
    )


def without_incomplete(*splits: Parts) -> tuple[list[tuple[Example, ...]], list[tuple[str, int]]]:
    """Return the splits without rows of which `example` made none, and how many those are, as `added` takes it."""
    whole = [tuple(each for each in split if each) for split in splits]
    return whole, [(INCOMPLETE, sum(map(len, splits)) - sum(map(len, whole)))]


def _once(rows: Sequence[Row]) -> dict[str, Row]:
    by_id: dict[str, Row] = {}
    for row in rows:
        if row.text("id") in by_id:
            raise DataError(
                f"{row.where}: the image id {row.text('id')} occurs a second time; remove one of the lines."
            )
        by_id[row.text("id")] = row
    return by_id


FOLDERS_2018 = ("vqa_med_2018", "VQA-Med-2018")
_WITH_ANSWERS_2018 = "VQAMed2018Test-QA-Eval.csv"
_FIELDS_2018 = ("number", "id", "question")


def load_2018(settings: DataSettings) -> SiteData:
    """VQA-Med 2018 (ImageCLEF): 5413 + 500 pairs made from captions of PubMed Central, and a test set of 500 questions.

        VQAMed2018Train/{VQAMed2018Train-QA.csv,VQAMed2018Train-images/}
        VQAMed2018Valid/{VQAMed2018Valid-QA.csv,VQAMed2018Valid-images/}
        VQAMed2018Test/{VQAMed2018Test-QA-Eval.csv or VQAMed2018Test-QA.csv,VQAMed2018Test-images/}

    Lines `number<tab>image<tab>question<tab>answer`, no header, ids without extension. Participants got the test
    questions without answers (VQAMed2018Test-QA.csv): such questions are counted and left out, and `split="published"`
    needs the organizers' file with the answers. The papers do not use this set, so `split="paper"` is refused.
    """
    if settings.split == "paper":
        raise DataError("split='paper' has no meaning for VQA-Med 2018; choose published or image_disjoint.")
    root = dataset_folder(settings, FOLDERS_2018)
    tested = _WITH_ANSWERS_2018 if contains(root, _WITH_ANSWERS_2018) else "VQAMed2018Test-QA.csv"
    files = {"Train": "VQAMed2018Train-QA.csv", "Valid": "VQAMed2018Valid-QA.csv", "Test": tested}
    read = {part: _pairs_2018(find(root, file), root, f"VQAMed2018{part}-images") for part, file in files.items()}
    test, _ = read["Test"]
    if not test and settings.split == "published":
        raise DataError(
            f"{find(root, tested)} has no answers; put the organizers' {_WITH_ANSWERS_2018!r} there, or set "
            f"split='image_disjoint' to cut a test set out of the pairs that have one."
        )
    splits = arrange(settings, train=read["Train"][0], validation=read["Valid"][0], test=test)
    split = "split by image" if settings.split == "image_disjoint" else "published split"
    left_out = added([("the question has no published answer", sum(without for _, without in read.values()))])
    source = f"VQA-Med 2018 (ImageCLEF), real data, {split}"
    return SiteData(settings.site or "vqa-med-2018", *splits, source, left_out=left_out)


def _pairs_2018(file: Path, root: Path, images: str) -> tuple[tuple[Example, ...], int]:
    """Return the questions of a file that have an answer, and the number of the others."""
    rows = bar_rows(file, _FIELDS_2018, alternatives=True, separator="\t")
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


ORIGIN_2018 = Origin(
    title="VQA-Med 2018", address="ImageCLEF, after registration", terms="the images are those of PubMed Central"
)
VQA_MED_2018 = DataSet(
    load=load_2018,
    metric=ACCURACY,
    origin=ORIGIN_2018,
    recognized=holds(("*/VQAMed2018Train-QA.csv", "*/VQAMed2018Valid-QA.csv")),
    layout=tree(load_2018.__doc__),
    folders=FOLDERS_2018,
)


FOLDERS_2019 = ("vqa_med_2019", "VQA-Med-2019")
CATEGORIES = {"C1_Modality": "modality", "C2_Plane": "plane", "C3_Organ": "organ", "C4_Abnormality": "abnormality"}
_PAIR = ("id", "question", "answer")


def load_2019(settings: DataSettings) -> SiteData:
    """VQA-Med 2019 (ImageCLEF): modality, plane, organ and abnormality; 12792 + 2000 pairs and a test set of 500.

        ImageClef-2019-VQA-Med-Training/{All_QA_Pairs_train.txt,Train_images/,QAPairsByCategory/C1_Modality_train.txt,...}
        ImageClef-2019-VQA-Med-Validation/{All_QA_Pairs_val.txt,Val_images/,QAPairsByCategory/C1_Modality_val.txt,...}
        VQAMed2019Test/{VQAMed2019_Test_Questions_w_Ref_Answers.txt,VQAMed2019_Test_Images/}

    The category of a training question comes from the files by category; where All_QA_Pairs is absent they are read in
    its place, where they are absent the category stays empty. The test file has `id|category|question|answer`, and `#`
    between the accepted answers. `split="paper"`: train and validation together (14792 pairs) against the test set of
    500.
    """
    root = dataset_folder(settings, FOLDERS_2019)
    (train, validation, test), incomplete = without_incomplete(
        _pairs_2019(root, "train", "Train_images"), _pairs_2019(root, "val", "Val_images"), _test(root)
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


def _pairs_2019(root: Path, split: str, images: str) -> Parts:
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


ORIGIN_2019 = Origin(
    title="VQA-Med 2019", address="the organizers, github.com/abachaa", terms="the images are those of MedPix"
)
VQA_MED_2019 = DataSet(
    load=load_2019,
    metric=ACCURACY,
    origin=ORIGIN_2019,
    recognized=holds(("*/Train_images/", "*/VQAMed2019_Test_Images/")),
    layout=tree(load_2019.__doc__),
    folders=FOLDERS_2019,
)


FOLDERS_2020 = ("vqa_med_2020", "VQA-Med-2020")


def load_2020(settings: DataSettings) -> SiteData:
    """VQA-Med 2020 (ImageCLEF, task 1): abnormality questions, one per image; 4000 + 500 + 500 pairs.

        VQA-Med-2020-Task1-VQAnswering-TrainVal-Sets/
            VQAMed2020-VQAnswering-TrainingSet/{VQAnswering_2020_Train_QA_pairs.txt,VQAnswering_2020_Train_images/}
            VQAMed2020-VQAnswering-ValidationSet/{VQAnswering_2020_Val_QA_Pairs.txt,VQAnswering_2020_Val_images/}
        VQAMed2020-Task1-VQAnswering-Test-{Questions,ReferenceAnswers}.txt, Task1-2020-VQAnswering-Test-Images/

    The test files may lie in a folder of their own. `split="paper"` needs no training set: FedPIA and F3OCUS pool
    validation and test (1000 pairs) and split them 80:20; which pairs went where they do not say, so `seed` draws them.
    """
    root = dataset_folder(settings, FOLDERS_2020)
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


ORIGIN_2020 = Origin(
    title="VQA-Med 2020", address="the organizers, github.com/abachaa", terms="the images are those of MedPix"
)
VQA_MED_2020 = DataSet(
    load=load_2020,
    metric=ACCURACY,
    origin=ORIGIN_2020,
    recognized=holds(("*/VQAnswering_2020_Val_QA_Pairs.txt", "*/VQAMed2020-Task1-VQAnswering-Test-Questions.txt")),
    layout=tree(load_2020.__doc__),
    folders=FOLDERS_2020,
)


FOLDERS_2021 = ("vqa_med_2021", "VQA-Med-2021")


def load_2021(settings: DataSettings) -> SiteData:
    """VQA-Med 2021 (ImageCLEF, task 1): abnormality questions, one per image; new validation set, test set of 500.

        VQA-Med-2021-VQAnswering-Task1-New-ValidationSet.txt, ImageCLEF-2021-VQA-Med-New-Validation-Images/
        Task1-VQA-2021-TestSet-w-GroundTruth/{Task1-VQA-2021-TestSet-Questions.txt,Task1-VQA-2021-TestSet-ReferenceAnswers.txt,
            VQA-500-Images/ or images/VQA-500-Images/}

    The challenge's training set is that of 2020: it belongs to the site vqa-med-2020 and is not repeated here. So
    `split="published"` trains on the new validation set; `split="paper"` pools both sets (1000 pairs) and splits them
    80:20. A reference line holds all accepted answers, separated by bars; the first is the one to learn.
    """
    root = dataset_folder(settings, FOLDERS_2021)
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


ORIGIN_2021 = Origin(
    title="VQA-Med 2021", address="the organizers, github.com/abachaa", terms="the images are those of MedPix"
)
VQA_MED_2021 = DataSet(
    load=load_2021,
    metric=ACCURACY,
    origin=ORIGIN_2021,
    recognized=holds(
        ("*/VQA-Med-2021-VQAnswering-Task1-New-ValidationSet.txt", "*/Task1-VQA-2021-TestSet-Questions.txt")
    ),
    layout=tree(load_2021.__doc__),
    folders=FOLDERS_2021,
)

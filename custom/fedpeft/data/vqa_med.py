# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The VQA-Med challenges of 2018, 2019, 2020 and 2021 (ImageCLEF).

    synpic41148|what kind of image is this?|cta - ct angiography        a pair (id|question|answer)
    synpic42072|avascular necrosis|second answer                        reference answers (id|answer|answer...)

Lines have no header, ids no extension, line ends are LF or CRLF. There is no answer type: questions with the answer yes
or no are closed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedpeft.core.errors import DataError
from fedpeft.data.answers import is_missing
from fedpeft.data.folders import contains, dataset_folder, find, images_below, listed_image
from fedpeft.data.loaders import published_set, question_example, refuse_paper, site_of_questions
from fedpeft.data.partition import pooled
from fedpeft.data.records import INCOMPLETE, Row, bar_rows, complete
from fedpeft.data.schema import Example, SiteData, added
from fedpeft.data.settings import DataSettings

_PAIR = ("id", "question", "answer")

_WITH_ANSWERS_2018 = "VQAMed2018Test-QA-Eval.csv"

CATEGORIES = {"C1_Modality": "modality", "C2_Plane": "plane", "C3_Organ": "organ", "C4_Abnormality": "abnormality"}


class Asked(NamedTuple):
    """A row with `id` and `question`, its answers (the first is learned), and its category."""

    row: Row
    answers: Sequence[str]
    category: str = "abnormality"


def examples(root: Path, images: str, asked: Iterable[Asked]) -> tuple[Example | None, ...]:
    """Return the example of each row; None where the image, the question or every answer is missing."""
    folder = find(root, images, folder=True)
    known = images_below(folder)

    def example(row: Row, answers: Sequence[str], category: str) -> Example | None:
        given = [answer for answer in answers if not is_missing(answer)]
        if not given or not complete([row], ("id", "question")):
            return None
        name = row.text("id").removesuffix(".jpg")
        image = listed_image(known, folder, name, where=row.where)
        return question_example(row, image, given, image_id=name, question_type=category)

    return tuple(example(*each) for each in asked)


def drop_incomplete(*splits: Sequence[Example | None]) -> tuple[list[tuple[Example, ...]], list[tuple[str, int]]]:
    """Return the splits without incomplete rows, and the number of these, as `added` takes it."""
    whole = [tuple(each for each in split if each) for split in splits]
    return whole, [(INCOMPLETE, sum(map(len, splits)) - sum(map(len, whole)))]


def load_2018(settings: DataSettings) -> SiteData:
    """VQA-Med 2018 (ImageCLEF): 5413 + 500 pairs made from captions of PubMed Central, and a test set of 500 questions.

        VQAMed2018Train/{VQAMed2018Train-QA.csv,VQAMed2018Train-images/}
        VQAMed2018Valid/{VQAMed2018Valid-QA.csv,VQAMed2018Valid-images/}
        VQAMed2018Test/{VQAMed2018Test-QA-Eval.csv or VQAMed2018Test-QA.csv,VQAMed2018Test-images/}

    Lines `number<tab>image<tab>question<tab>answer`, no header, ids without extension. Participants got the test
    questions without answers (VQAMed2018Test-QA.csv): such questions are counted and left out, and `split="published"`
    needs the organizers' file with the answers. The papers do not use this set, so `split="paper"` is refused.
    """
    refuse_paper(settings, "VQA-Med 2018")
    root = dataset_folder(settings)
    tested = _WITH_ANSWERS_2018 if contains(root, _WITH_ANSWERS_2018) else "VQAMed2018Test-QA.csv"
    files = {"Train": "VQAMed2018Train-QA.csv", "Valid": "VQAMed2018Valid-QA.csv", "Test": tested}
    parts, without = [], 0
    for part, file in files.items():
        rows = bar_rows(find(root, file), ("number", "id", "question"), alternatives=True, separator="\t")
        if long := [row for row in rows if len(row.values["alternatives"]) > 1]:
            raise DataError(f"{long[0].where}: it has more than four fields; correct that row.")
        answered = [Asked(row, row.values["alternatives"], "") for row in rows if row.values["alternatives"]]
        [whole], _ = drop_incomplete(examples(root, f"VQAMed2018{part}-images", answered))
        parts.append(whole)
        without += len(rows) - len(whole)
    train, validation, test = parts
    if not test and settings.split == "published":
        raise DataError(
            f"{find(root, tested)} has no answers; put the organizers' {_WITH_ANSWERS_2018!r} there, or set "
            f"split='image_disjoint' to cut a test set out of the pairs that have one."
        )
    return site_of_questions(
        settings,
        "vqa-med-2018",
        "VQA-Med 2018 (ImageCLEF), real data",
        train=train,
        validation=validation,
        test=test,
        left_out=[("the question has no published answer", without)],
    )


VQA_MED_2018 = published_set("vqa_med_2018", load_2018)


def load_2019(settings: DataSettings) -> SiteData:
    """VQA-Med 2019 (ImageCLEF): modality, plane, organ and abnormality; 12792 + 2000 pairs and a test set of 500.

        ImageClef-2019-VQA-Med-Training/{All_QA_Pairs_train.txt,Train_images/,QAPairsByCategory/C1_Modality_train.txt,...}
        ImageClef-2019-VQA-Med-Validation/{All_QA_Pairs_val.txt,Val_images/,QAPairsByCategory/C1_Modality_val.txt,...}
        VQAMed2019Test/{VQAMed2019_Test_Questions_w_Ref_Answers.txt,VQAMed2019_Test_Images/}

    The category of a training question comes from the files by category; they replace All_QA_Pairs where it is absent,
    and without them the category stays empty. The test file has `id|category|question|answer`, with `#` between the
    accepted answers; text in brackets may be left out (the organizers' README). `split="paper"`: train and validation
    together (14792 pairs) against the test set of 500.
    """
    root = dataset_folder(settings)
    tested = bar_rows(find(root, "VQAMed2019_Test_Questions_w_Ref_Answers.txt"), ("id", "category", *_PAIR[1:]))
    (train, validation, test), incomplete = drop_incomplete(
        examples(root, "Train_images", _read_by_category(root, "train")),
        examples(root, "Val_images", _read_by_category(root, "val")),
        examples(
            root,
            "VQAMed2019_Test_Images",
            (Asked(row, _accepted(row.label("answer")), row.label("category").lower()) for row in tested),
        ),
    )
    known = {"train": train, "validation": validation, "test": test}
    source = "VQA-Med 2019 (ImageCLEF), real data"
    if settings.split != "paper":
        return site_of_questions(settings, "vqa-med-2019", source, **known, left_out=incomplete)
    site = site_of_questions(settings, "vqa-med-2019", source, train=(*train, *validation), test=test)
    return replace(site, source=f"{source}, train with validation against test", left_out=added(incomplete))


def _accepted(answer: str) -> list[str]:
    """Return the accepted answers of the test file: each as written, without brackets, and without text in brackets.

    Equal forms count once; a form of nothing but brackets does not count.
    """
    forms = [
        " ".join(form.split())
        for accepted in answer.split("#")
        for form in (accepted, re.sub(r"[()]", " ", accepted), re.sub(r"\([^()]*\)", " ", accepted))
    ]
    return [form for form in dict.fromkeys(forms) if re.search(r"\w", form)]


def _read_by_category(root: Path, split: str) -> list[Asked]:
    by_category = {
        category: bar_rows(find(root, f"{stem}_{split}.txt"), _PAIR)
        for stem, category in CATEGORIES.items()
        if contains(root, f"{stem}_{split}.txt")
    }
    everything = f"All_QA_Pairs_{split}.txt"
    if by_category and not contains(root, everything):
        return [Asked(row, [row.values["answer"]], category) for category, rows in by_category.items() for row in rows]
    category_of = {_key(row): category for category, rows in by_category.items() for row in rows}
    rows = bar_rows(find(root, everything), _PAIR)
    return [Asked(row, [row.values["answer"]], category_of.get(_key(row), "")) for row in rows]


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row.label(field) for field in _PAIR)


VQA_MED_2019 = published_set("vqa_med_2019", load_2019)


class Task1(NamedTuple):
    """Files of the questions about abnormalities."""

    year: int
    pairs: dict[str, tuple[str, str]]  # by split in order, the file of `id|question|answer[|answer...]` and its images
    test: tuple[str, str, str]  # the files of questions and of reference answers, and the folder of their images


def _task_1(settings: DataSettings, task: Task1) -> SiteData:
    """Load the questions of one year; the papers only pool the last of the pairs with the test set."""
    root = dataset_folder(settings)
    paper = settings.split == "paper"
    read = [_pairs(root, *files) for files in list(task.pairs.values())[-1 if paper else 0 :]]
    splits, incomplete = drop_incomplete(*read, _pair_with_references(root, *task.test))
    site, source = f"vqa-med-{task.year}", f"VQA-Med {task.year} (ImageCLEF), real data"
    if paper:
        parts = pooled([example for split in splits for example in split], settings)
        source = f"{source}, validation and test pooled and split by image, as in the papers"
        return SiteData(settings.site or site, *parts, source, left_out=added(incomplete))
    named = dict(zip((*task.pairs, "test"), splits, strict=True))
    return site_of_questions(settings, site, source, **named, left_out=incomplete)


def _pairs(root: Path, text: str, images: str) -> tuple[Example | None, ...]:
    rows = bar_rows(find(root, text), _PAIR, alternatives=True)
    return examples(root, images, (Asked(row, [row.values["answer"], *row.values["alternatives"]]) for row in rows))


def _pair_with_references(root: Path, questions: str, references: str, images: str) -> tuple[Example | None, ...]:
    question_file, answer_file = find(root, questions), find(root, references)
    asked = _index_by_id(bar_rows(question_file, ("id", "question")))
    answers = _index_by_id(bar_rows(answer_file, ("id", "answer"), alternatives=True))
    if unpaired := sorted(asked.keys() ^ answers.keys()):
        raise DataError(
            f"{unpaired[0]} is in only one of {question_file} and {answer_file}; put the owners' two files there."
        )
    of_each = {name: [row.values["answer"], *row.values["alternatives"]] for name, row in answers.items()}
    return examples(root, images, (Asked(row, of_each[name]) for name, row in asked.items()))


def _index_by_id(rows: Sequence[Row]) -> dict[str, Row]:
    by_id: dict[str, Row] = {}
    for row in rows:
        if by_id.setdefault(row.text("id"), row) is not row:
            raise DataError(
                f"{row.where}: the image id {row.text('id')} occurs a second time; remove one of the lines."
            )
    return by_id


def load_2020(settings: DataSettings) -> SiteData:
    """VQA-Med 2020 (ImageCLEF, task 1): abnormality questions, one per image; 4000 + 500 + 500 pairs.

        VQA-Med-2020-Task1-VQAnswering-TrainVal-Sets/
            VQAMed2020-VQAnswering-TrainingSet/{VQAnswering_2020_Train_QA_pairs.txt,VQAnswering_2020_Train_images/}
            VQAMed2020-VQAnswering-ValidationSet/{VQAnswering_2020_Val_QA_Pairs.txt,VQAnswering_2020_Val_images/}
        VQAMed2020-Task1-VQAnswering-Test-{Questions,ReferenceAnswers}.txt, Task1-2020-VQAnswering-Test-Images/

    The test files may be in a folder of their own. `split="paper"` needs no training set: FedPIA and F3OCUS pool
    validation and test (1000 pairs) and split them 80:20; they do not say which pairs went where, so `seed` draws them.
    """
    test = "VQAMed2020-Task1-VQAnswering-Test"
    pairs = {
        "train": ("VQAnswering_2020_Train_QA_pairs.txt", "VQAnswering_2020_Train_images"),
        "validation": ("VQAnswering_2020_Val_QA_Pairs.txt", "VQAnswering_2020_Val_images"),
    }
    files = (f"{test}-Questions.txt", f"{test}-ReferenceAnswers.txt", "Task1-2020-VQAnswering-Test-Images")
    return _task_1(settings, Task1(2020, pairs, files))


VQA_MED_2020 = published_set("vqa_med_2020", load_2020)


def load_2021(settings: DataSettings) -> SiteData:
    """VQA-Med 2021 (ImageCLEF, task 1): abnormality questions, one per image; new validation set, test set of 500.

        VQA-Med-2021-VQAnswering-Task1-New-ValidationSet.txt, ImageCLEF-2021-VQA-Med-New-Validation-Images/
        Task1-VQA-2021-TestSet-w-GroundTruth/{Task1-VQA-2021-TestSet-Questions.txt,Task1-VQA-2021-TestSet-ReferenceAnswers.txt,
            VQA-500-Images/ or images/VQA-500-Images/}

    The challenge's training set is that of 2020: it belongs to the site vqa-med-2020 and is not repeated here. So
    `split="published"` trains on the new validation set; `split="paper"` pools both sets (1000 pairs) and splits them
    80:20. A reference line holds all accepted answers, separated by bars; the first is the one to learn.
    """
    new = "VQA-Med-2021-VQAnswering-Task1-New-ValidationSet.txt", "ImageCLEF-2021-VQA-Med-New-Validation-Images"
    test = "Task1-VQA-2021-TestSet"
    files = (f"{test}-Questions.txt", f"{test}-ReferenceAnswers.txt", "VQA-500-Images")
    return _task_1(settings, Task1(2021, {"train": new}, files))


VQA_MED_2021 = published_set("vqa_med_2021", load_2021)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Readers that the VQA-Med challenges of 2019, 2020 and 2021 share: bar-separated pairs, ids, reference answers.

    synpic41148|what kind of image is this?|cta - ct angiography        a pair (id|question|answer)
    synpic42072|avascular necrosis|second answer                        reference answers (id|answer|answer...)

Lines have no header, ids no extension, line ends are LF or CRLF. There is no answer type: closed is what is answered
by yes or no.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedpeft.data.answers import closed_by_answer, is_missing, normalize
from fedpeft.data.errors import DataError
from fedpeft.data.folders import find, images_below, missing_image
from fedpeft.data.records import INCOMPLETE, Row, bar_rows, complete, reading
from fedpeft.data.schema import Example

Parts = tuple[Example | None, ...]  # None: an incomplete row


def pairs(root: Path, text: str, images: str) -> Parts:
    """Read the examples of a file with lines `id|question|answer[|further accepted answer...]`.

    Args:
        root: the data set's folder; text file and image folder may lie anywhere below it.
        text: name of the file.
        images: name of the folder with the images.
    """
    rows = bar_rows(find(root, text), ("id", "question", "answer"), alternatives=True)
    folder = find(root, images, folder=True)
    known = images_below(folder)
    return tuple(
        example(row, [row.values["answer"], *row.values["alternatives"]], folder=folder, images=known) for row in rows
    )


def questions_with_references(root: Path, questions: str, references: str, images: str) -> Parts:
    """Read the examples of a test set whose questions (`id|question`) and answers (`id|answer|...`) are in two files.

    Raises:
        DataError: an id is in one of the two files only, or twice in one.
    """
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

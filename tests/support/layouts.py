# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Small copies of the owners' layouts, written into a test's folder."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, *, mode: str = "RGB") -> Path:
    """A 6x5 image whose pixels depend on the file's name, so that two images differ."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(zlib.crc32(path.as_posix().encode()))
    Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)).convert(mode).save(path)
    return path


def pictures(folder: Path, ids: Iterable[str]) -> None:
    for image_id in ids:
        picture(folder / f"{image_id}.jpg")


def lines(path: Path, rows: Sequence[str], *, end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(row + end for row in rows).encode())
    return path


def as_json(path: Path, rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def ids(start: int, count: int) -> list[str]:
    return [f"synpic{number}" for number in range(start, start + count)]


def rad_row(image: str, *, organ: str = "HEAD", answer: object = "Yes", phrase: str = "freeform", **more) -> dict:
    return {
        "qid": 1,
        "image_name": f"{image}.jpg",
        "image_organ": organ,
        "answer": answer,
        "answer_type": "CLOSED",
        "question_type": "PRES",
        "question": f"Is there something in {image}?",
        "phrase_type": phrase,
        **more,
    }


def slake_row(image: int, *, language: str = "en", **more) -> dict:
    return {
        "img_id": image,
        "img_name": f"xmlab{image}/source.jpg",
        "question": "What modality is used to take this image?",
        "answer": "MRI",
        "q_lang": language,
        "location": "Abdomen",
        "modality": "MRI",
        "answer_type": "OPEN",
        "base_type": "vqa",
        "content_type": "Modality",
        "triple": ["vhead", "_", "_"],
        "qid": 0,
        **more,
    }


def slake(root: Path, *, validation: str = "validate.json") -> Path:
    """SLAKE with ten training, three validation and three test images; the Chinese rows have test images in train."""
    for number in range(1, 17):
        picture(root / "imgs" / f"xmlab{number}" / "source.jpg")
    closed = {
        "answer_type": "CLOSED",
        "answer": "Left",
        "question": "Is the mass left or right?",
        "content_type": "Position",
    }
    train = [slake_row(n) for n in range(1, 11)] + [slake_row(1, **closed)] + [slake_row(16, language="zh")]
    as_json(root / "train.json", train)
    as_json(root / validation, [slake_row(n) for n in range(11, 14)])
    as_json(root / "test.json", [slake_row(n) for n in range(14, 17)] + [slake_row(1, language="zh")])
    return root


def vqa_med_2018(root: Path, *, answered: bool = True) -> Path:
    """Ten training, three validation and four test images; tabs between the fields, CRLF ends in one file."""
    parts = {"Train": (ids(0, 10), "\r\n"), "Valid": (ids(20, 3), "\n"), "Test": (ids(40, 4), "\n")}
    for part, (image_ids, end) in parts.items():
        folder = root / f"VQAMed2018{part}"
        pictures(folder / f"VQAMed2018{part}-images", image_ids)
        known = answered or part != "Test"
        answers = ["lesion at tail | of pancreas" if known else "", "Yes" if known else ""]
        rows = [f"{n}\t{i}\twhat does mri show?\t{answers[n % 2]}" for n, i in enumerate(image_ids, 1)]
        name = "Test-QA-Eval" if answered and part == "Test" else f"{part}-QA"
        lines(folder / f"VQAMed2018{name}.csv", rows, end=end)
    return root


def vqa_med_2019(root: Path, *, by_category: bool = True, everything: bool = True) -> Path:
    """Ten training, three validation and two test images; the training file ends its lines with CRLF."""
    parts = {
        "train": (root / "ImageClef-2019-VQA-Med-Training", "Train_images", ids(100, 10), "\r\n"),
        "val": (root / "ImageClef-2019-VQA-Med-Validation", "Val_images", ids(200, 3), "\n"),
    }
    kinds = {
        "C1_Modality": "what kind of image is this?|cta - ct angiography",
        "C2_Plane": "in what plane?|axial",
        "C3_Organ": "which organ?|lung",
        "C4_Abnormality": "is this image normal?|Yes",
    }
    for split, (folder, images, image_ids, end) in parts.items():
        pictures(folder / images, image_ids)
        rows = {kind: [f"{image_id}|{pair}" for image_id in image_ids] for kind, pair in kinds.items()}
        if everything:
            lines(folder / f"All_QA_Pairs_{split}.txt", [row for kind in rows.values() for row in kind], end=end)
        for kind, of_kind in rows.items() if by_category else ():
            lines(folder / "QAPairsByCategory" / f"{kind}_{split}.txt", of_kind, end=end)
    test = root / "VQAMed2019Test"
    pictures(test / "VQAMed2019_Test_Images", ids(300, 2))
    lines(
        test / "VQAMed2019_Test_Questions_w_Ref_Answers.txt",
        [
            "synpic300|modality|what kind of image is this?|CT#CTA - CT  angiography",
            "synpic301|Organ|which organ?|lung",
        ],
    )
    return root


def vqa_med_2020(root: Path, *, train: bool = True) -> Path:
    """Twelve training, ten validation and ten test images; the test files lie in a folder of their own."""
    sets = root / "VQA-Med-2020-Task1-VQAnswering-TrainVal-Sets"
    named = {
        "Training": ("VQAnswering_2020_Train_QA_pairs.txt", "VQAnswering_2020_Train_images", ids(400, 12)),
        "Validation": ("VQAnswering_2020_Val_QA_Pairs.txt", "VQAnswering_2020_Val_images", ids(500, 10)),
    }
    for name, (text, images, image_ids) in named.items():
        if name == "Validation" or train:
            folder = sets / f"VQAMed2020-VQAnswering-{name}Set"
            pictures(folder / images, image_ids)
            lines(folder / text, [f"{i}|what is abnormal?|finding {i[-1]}" for i in image_ids], end="\r\n")
    _test_set(
        root / "VQA-TestSet-ReferenceAnswers-VQAMed2020-Task1",
        "VQAMed2020-Task1-VQAnswering-Test-Questions.txt",
        "VQAMed2020-Task1-VQAnswering-Test-ReferenceAnswers.txt",
        "Task1-2020-VQAnswering-Test-Images",
        ids(600, 10),
    )
    return root


def vqa_med_2021(root: Path, *, nested: bool = True) -> Path:
    """Ten images in the new validation set, ten in the test set, whose images lie in `images/` if nested."""
    folder = root / "VQA-Med-2021-Tasks-1-2-NewValidationSets"
    pictures(folder / "ImageCLEF-2021-VQA-Med-New-Validation-Images", ids(700, 10))
    rows = [f"{image_id}|what is abnormal?|finding {image_id[-1]}" for image_id in ids(700, 10)]
    lines(folder / "VQA-Med-2021-VQAnswering-Task1-New-ValidationSet.txt", rows)
    _test_set(
        root / "Task1-VQA-2021-TestSet-w-GroundTruth",
        "Task1-VQA-2021-TestSet-Questions.txt",
        "Task1-VQA-2021-TestSet-ReferenceAnswers.txt",
        "images/VQA-500-Images" if nested else "VQA-500-Images",
        ids(800, 10),
    )
    return root


def _test_set(folder: Path, questions: str, references: str, images: str, image_ids: list[str]) -> None:
    pictures(folder / images, image_ids)
    lines(folder / questions, [f"{i}|is there an abnormality?" for i in image_ids])
    answers = {image_ids[0]: "Avascular necrosis|avn of the hip|", image_ids[1]: "no"}
    lines(folder / references, [f"{i}|{answers.get(i, f'finding {i[-1]}')}" for i in reversed(image_ids)])

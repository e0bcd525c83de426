# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A folder of images for each class, made of real images: what `fedpeft new --data` takes.

    python benchmarks/class_folders.py FOLDER  # head, abdomen, chest and skin, from the data sets under FEDPEFT_DATA
    python benchmarks/class_folders.py FOLDER --classes head abdomen chest melanoma naevus --images 60

Head and abdomen are the scans of VQA-RAD with that organ, chest is one radiograph for each patient of NIH ChestX-ray14,
skin, melanoma and naevus are of Fed-ISIC2019. All become RGB of one size. A class with fewer images has all that there
are. One more image of each class, where there is one, goes into FOLDER-new, to predict.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

from PIL import Image

VQA_RAD, NIH, ISIC = "vqa_rad", "nih_cxr14_64px", "fed_isic2019"
ANY, MELANOMA, NAEVUS = "", "0", "1"  # targets of Fed-ISIC2019


def of_organ(data: Path, organ: str) -> list[Path]:
    """Return the scans of VQA-RAD that show an organ, `HEAD` or `ABD`."""
    rows = [
        row for part in ("trainset", "testset") for row in json.loads((data / VQA_RAD / f"{part}.json").read_text())
    ]
    names = {row["image_name"] for row in rows if row["image_organ"].upper() == organ}
    return [data / VQA_RAD / "images" / name for name in names]


def radiographs(data: Path) -> list[Path]:
    """Return the first radiograph of each patient of NIH ChestX-ray14."""
    first: dict[str, str] = {}
    for row in _rows(data / NIH / "Data_Entry_2017_v2020.csv"):
        first.setdefault(row["Patient ID"], row["Image Index"])
    return [data / NIH / "images" / name for name in first.values()]


def lesions(data: Path, target: str) -> list[Path]:
    """Return the images of Fed-ISIC2019 with a target; of `ANY`, all."""
    rows = _rows(data / ISIC / "train_test_split")
    names = [row["image"] for row in rows if target in (ANY, row["target"].partition(".")[0])]
    return [data / ISIC / "ISIC_2019_Training_Input_preprocessed" / f"{name}.jpg" for name in names]


CLASSES: dict[str, Callable[[Path], list[Path]]] = {
    "head": lambda data: of_organ(data, "HEAD"),
    "abdomen": lambda data: of_organ(data, "ABD"),
    "chest": radiographs,
    "skin": lambda data: lesions(data, ANY),
    "melanoma": lambda data: lesions(data, MELANOMA),
    "naevus": lambda data: lesions(data, NAEVUS),
}


def _rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def main() -> None:
    """Draw the images of each class and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--classes", nargs="+", choices=CLASSES, default=["head", "abdomen", "chest", "skin"])
    parser.add_argument("--images", type=int, default=100, help="of each class, at most")
    parser.add_argument("--size", type=int, default=64, help="pixels of an edge")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if "FEDPEFT_DATA" not in os.environ:
        parser.error("FEDPEFT_DATA is not set: name the folder that has vqa_rad, nih_cxr14_64px and fed_isic2019.")
    data, generator = Path(os.environ["FEDPEFT_DATA"]), random.Random(given.seed)
    if missing := [name for name in (VQA_RAD, NIH, ISIC) if not (data / name).is_dir()]:
        parser.error(f"FEDPEFT_DATA={data} has no folder {missing[0]}: name the folder that has all three data sets.")
    more = given.folder.with_name(f"{given.folder.name}-new")
    for there in (given.folder, more):
        if there.exists():
            parser.error(f"{there} exists: remove it, or name another folder.")
    more.mkdir(parents=True)
    for name in given.classes:
        images = sorted(path for path in CLASSES[name](data) if path.is_file())
        generator.shuffle(images)
        (given.folder / name).mkdir(parents=True)
        for number, path in enumerate(images[: given.images]):
            _write(path, given.folder / name / f"{number:03d}.png", given.size)
        for path in images[given.images : given.images + 1]:
            _write(path, more / f"{name}.png", given.size)
        print(f"{name}: {min(len(images), given.images)} of {len(images)} images")


def _write(image: Path, place: Path, size: int) -> None:
    with Image.open(image) as opened:
        opened.convert("RGB").resize((size, size), Image.Resampling.LANCZOS).save(place)


if __name__ == "__main__":
    main()

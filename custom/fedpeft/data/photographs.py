# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Photographs of many kinds of objects and flowers, for the federated tuning of vision transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import BALANCED_ACCURACY
from fedpeft.data.folders import dataset_folder, find, holds, image_file, tree
from fedpeft.data.loaders import TAKES, class_example, class_folders, site_of
from fedpeft.data.registry import DataSet, Origin, packaged
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import DataSettings

CALTECH_FOLDERS = ("caltech101", "caltech-101", "Caltech101")
BACKGROUND = "BACKGROUND_Google"
CALTECH_CLASSES: list[str] = packaged("class_names")["caltech101"]


def caltech101_answers() -> tuple[str, ...]:
    """Return the 101 classes."""
    return tuple(name.replace("_", " ") for name in CALTECH_CLASSES)


def load_caltech101(settings: DataSettings) -> SiteData:
    """Caltech101 (Fei-Fei et al., 2004): photographs of 101 kinds of objects.

        101_ObjectCategories/<class>/image_0001.jpg

    The folder BACKGROUND_Google is no class and is left out. The owners publish no split: images are split here, in
    the federated tuning of vision transformers 50:50 (`test_fraction=0.5`).
    """
    root = find(dataset_folder(settings, CALTECH_FOLDERS), "101_ObjectCategories", folder=True)
    folders = class_folders(root)
    background = folders.pop(BACKGROUND, [])
    if unknown := [name for name in folders if name.lower() not in CALTECH_CLASSES]:
        raise DataError(f"{root} holds the folder {unknown[0]!r:.80}, which is no class of Caltech101; remove it.")
    examples = [
        class_example(file, name.replace("_", " "), image_id=f"{name}/{file.stem}")
        for name, files in folders.items()
        for file in files
    ]
    return site_of(
        settings,
        "caltech101",
        "Caltech101 (Fei-Fei et al., 2004), real data, split by image",
        train=examples,
        left_out=[(f"the folder {BACKGROUND} is no class", len(background))],
    )


CALTECH_ORIGIN = Origin(
    title="Caltech101", address="data.caltech.edu/records/mzrjq-6wc02", terms="CC BY 4.0 in that record"
)
CALTECH101 = DataSet(
    load=load_caltech101,
    answers=caltech101_answers,
    takes=TAKES,
    metric=BALANCED_ACCURACY,
    origin=CALTECH_ORIGIN,
    recognized=holds("*/101_ObjectCategories/"),
    layout=tree(load_caltech101.__doc__),
    folders=CALTECH_FOLDERS,
)


FLOWERS_FOLDERS = ("flowers-102", "flowers102", "Flowers102")
FLOWERS_CLASSES = 102


def flowers102_answers() -> tuple[str, ...]:
    """Return the numbers of the 102 classes."""
    return tuple(str(number) for number in range(1, FLOWERS_CLASSES + 1))


def load_flowers102(settings: DataSettings) -> SiteData:
    """Flowers102 (Nilsback and Zisserman, 2008): photographs of 102 kinds of flowers, with the owners' split.

        jpg/image_00001.jpg, imagelabels.mat ('labels', counted from 1), setid.mat ('trnid', 'valid', 'tstid')

    The owners' files have numbers and no names; a class is called by its number. `split="paper"`: the federated tuning
    of vision transformers trains on 25 % and tests on 75 %, which are 'trnid' with 'valid' (2040 images) and 'tstid'
    (6149).
    """
    root = dataset_folder(settings, FLOWERS_FOLDERS)
    labels = _entry(find(root, "imagelabels.mat"), "labels")
    split, folder = find(root, "setid.mat"), find(root, "jpg", folder=True)
    if labels and not 1 <= min(labels) <= max(labels) <= FLOWERS_CLASSES:
        raise DataError(
            f"{root}/imagelabels.mat has a class that is not from 1 to {FLOWERS_CLASSES}; download it again."
        )

    def examples(entry: str) -> list[Example]:
        return [_example(number, labels, folder, where=str(split)) for number in _entry(split, entry)]

    train, validation, test = examples("trnid"), examples("valid"), examples("tstid")
    source = "Flowers102 (Nilsback and Zisserman, 2008), real data"
    if settings.split == "paper":
        whole, source = replace(settings, split="published"), f"{source}, train with validation against test"
        return site_of(whole, "flowers102", source, train=[*train, *validation], test=test)
    return site_of(settings, "flowers102", source, train=train, validation=validation, test=test)


def _example(number: int, labels: list[int], folder: Path, *, where: str) -> Example:
    if not 1 <= number <= len(labels):
        raise DataError(f"{where} names image {number}, imagelabels.mat has {len(labels)}; download both again.")
    name = f"image_{number:05}"
    file = image_file(folder, f"{name}.jpg", where=where)
    return class_example(file, str(labels[number - 1]), image_id=name)


def _entry(file: Path, name: str) -> list[int]:
    """Return the whole numbers of one entry of a MATLAB file."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content: dict[str, Any] = loadmat(file, variable_names=[name])
        return [int(value) for value in content[name].ravel()]
    except (LookupError, OSError, TypeError, ValueError, NotImplementedError, MatReadError) as error:
        raise DataError(f"{file} has no entry {name!r} with whole numbers; download it again.") from error


FLOWERS_ORIGIN = Origin(
    title="Flowers102", address="robots.ox.ac.uk/~vgg/data/flowers/102", terms="the owners name none; images of the web"
)
FLOWERS102 = DataSet(
    load=load_flowers102,
    answers=flowers102_answers,
    takes=TAKES,
    metric=BALANCED_ACCURACY,
    origin=FLOWERS_ORIGIN,
    recognized=holds(("*/imagelabels.mat", "*/setid.mat", "*/jpg/")),
    layout=tree(load_flowers102.__doc__),
    folders=FLOWERS_FOLDERS,
)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Flowers102 (Nilsback and Zisserman, 2008): photographs of 102 kinds of flowers, with the owners' split.

    jpg/image_00001.jpg, imagelabels.mat ('labels', counted from 1), setid.mat ('trnid', 'valid', 'tstid')

The owners' files have numbers and no names; a class is called by its number. `split="paper"`: the federated tuning of
vision transformers trains on 25 % and tests on 75 %, which are 'trnid' with 'valid' (2040 images) and 'tstid' (6149).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpeft.core.metrics import BALANCED_ACCURACY
from fedpeft.data.errors import DataError
from fedpeft.data.folders import dataset_folder, find, image_file
from fedpeft.data.glance import holds, tree
from fedpeft.data.labelled_images import TAKES, class_example, site_of
from fedpeft.data.registry import DataSet, Origin
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import DataSettings

FOLDERS = ("flowers-102", "flowers102", "Flowers102")
CLASSES = 102


def answers() -> tuple[str, ...]:
    """Return the numbers of the 102 classes."""
    return tuple(str(number) for number in range(1, CLASSES + 1))


def load(settings: DataSettings) -> SiteData:
    """Load the data set, or one site's part of it.

    Raises:
        DataError: missing folder, file or image, or a file without the owners' entries.
    """
    root = dataset_folder(settings, FOLDERS)
    labels = _entry(find(root, "imagelabels.mat"), "labels")
    split, folder = find(root, "setid.mat"), find(root, "jpg", folder=True)
    if labels and not 1 <= min(labels) <= max(labels) <= CLASSES:
        raise DataError(f"{root}/imagelabels.mat has a class that is not from 1 to {CLASSES}; download it again.")

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


ORIGIN = Origin(
    title="Flowers102", address="robots.ox.ac.uk/~vgg/data/flowers/102", terms="the owners name none; images of the web"
)
DATASET = DataSet(
    load=load,
    answers=answers,
    takes=TAKES,
    metric=BALANCED_ACCURACY,
    origin=ORIGIN,
    recognized=holds(("*/imagelabels.mat", "*/setid.mat", "*/jpg/")),
    layout=tree(__doc__),
    folders=FOLDERS,
)

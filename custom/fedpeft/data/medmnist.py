# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""MedMNIST v2 (Yang et al., Sci Data 2023): twelve sets of small medical images, each with its published split.

    <name>.npz, <name>_64.npz, <name>_128.npz or <name>_224.npz      the largest that is there is read

Keys: {train,val,test}_{images,labels}, uint8. ChestMNIST has 14 labels, the others one class for each image.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import BALANCED_ACCURACY, MACRO_F1
from fedpeft.data.folders import dataset_folder, matches, tree
from fedpeft.data.loaders import TAKES, class_example, label_example, site_of
from fedpeft.data.registry import DataSet, Origin, packaged
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import DataSettings

FOLDERS = ("medmnist", "MedMNIST")
ORIGIN = Origin(
    title="MedMNIST",
    address="medmnist.com, doi.org/10.5281/zenodo.10519652",
    terms="CC BY 4.0; DermaMNIST CC BY-NC 4.0",
)
SIZES = ("_224", "_128", "_64", "")
SPLITS = ("train", "val", "test")


class MedMnist(NamedTuple):
    """One of the sets: its file's name and its classes in the order of their numbers."""

    name: str
    classes: tuple[str, ...]
    site: str  # this and the next three: where Ultra-MedVQA has it, see `ultra_med_vqa.Subject`
    modality: str
    anatomy: str
    classes_are: str
    labelled: bool = False  # an image has any number of the classes


SETS = tuple(
    MedMnist(name, **{**known, "classes": tuple(known["classes"])}) for name, known in packaged("medmnist").items()
)


def load(kind: MedMnist, settings: DataSettings) -> SiteData:
    """Load one of the sets, or one site's part of it."""
    root = dataset_folder(settings)
    file = next((path for size in SIZES if (path := root / f"{kind.name}{size}.npz").is_file()), None)
    if file is None:
        raise DataError(f"{root} holds no {kind.name}.npz, nor one with _64, _128 or _224; put the owners' file there.")
    train, validation, test = (_examples(kind, split, *stored_arrays(file, split, kind)) for split in SPLITS)
    return site_of(
        settings,
        kind.name,
        f"{kind.name} (MedMNIST v2, Yang et al. 2023), real data, published split",
        train=train,
        validation=validation,
        test=test,
        labels=kind.classes if kind.labelled else (),
    )


def stored_arrays(file: Path, split: str, kind: MedMnist) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (n, H, W, 3) and the labels (n, 1), or (n, L), of a split."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            images, labels = stored[f"{split}_images"], stored[f"{split}_labels"]
            if not (isinstance(images, np.ndarray) and isinstance(labels, np.ndarray)):
                raise ValueError("a member is no array")
    except (KeyError, OSError, ValueError, TypeError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{file} cannot be read as MedMNIST's arrays of {split}; download it again.") from error
    images = np.repeat(images[..., None], 3, axis=-1) if images.ndim == 3 else images
    width = len(kind.classes) if kind.labelled else 1
    highest = 2 if kind.labelled else len(kind.classes)
    if (
        images.dtype != np.uint8
        or images.ndim != 4
        or images.shape[-1] != 3
        or labels.shape != (len(images), width)
        or labels.dtype.kind not in "iub"
        or (labels.size and not 0 <= labels.min() <= labels.max() < highest)
    ):
        raise DataError(
            f"{file} has {split} images of shape {images.shape} ({images.dtype}) and labels of shape {labels.shape} "
            f"({labels.dtype}), not (n, H, W) or (n, H, W, 3) in uint8 and whole numbers (n, {width}) below {highest}; "
            f"download it again."
        )
    return images, labels


def _examples(kind: MedMnist, split: str, images: np.ndarray, labels: np.ndarray) -> Sequence[Example]:
    names = [f"{kind.name} {split} {number}" for number in range(len(images))]
    if kind.labelled:
        return [
            label_example(image, [kind.classes[i] for i in np.flatnonzero(row)], image_id=name)
            for image, row, name in zip(images, labels, names, strict=True)
        ]
    return [
        class_example(image, kind.classes[int(row[0])], image_id=name)
        for image, row, name in zip(images, labels, names, strict=True)
    ]


def _data_set(kind: MedMnist) -> DataSet:
    return DataSet(
        load=partial(load, kind),
        answers=lambda: kind.classes,
        takes=TAKES,
        metric=MACRO_F1 if kind.labelled else BALANCED_ACCURACY,
        origin=ORIGIN,
        recognized=matches(*(f"/{kind.name}{size}.npz" for size in SIZES)),
        layout=tree(__doc__),
        folders=FOLDERS,
    )


(
    PATHMNIST,
    CHESTMNIST,
    DERMAMNIST,
    OCTMNIST,
    PNEUMONIAMNIST,
    RETINAMNIST,
    BREASTMNIST,
    BLOODMNIST,
    TISSUEMNIST,
    ORGANAMNIST,
    ORGANCMNIST,
    ORGANSMNIST,
) = map(_data_set, SETS)

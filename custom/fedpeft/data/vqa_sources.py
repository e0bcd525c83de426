# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Class-labelled images from which questions are made: MedMNIST's files, and folders of class folders.

    <name>.npz, <name>_64.npz, ...                          MedMNIST: a file, or a folder of them (the largest of each)
    SOURCE/<class>/*.png                                    one set
    SOURCE/{train,val,test}/<class>/*.png                   one set; its splits are joined
    SOURCE/<set>/<class>/*.png                              several sets, a site each

MedMNIST's sets belong to the nine sites of Ultra-MedVQA (F3OCUS, supplement C.1).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedpeft.data.answers import normalize
from fedpeft.data.errors import DataError
from fedpeft.data.folders import files_below, is_hidden, is_image
from fedpeft.data.images import open_image
from fedpeft.data.medmnist import SETS, SIZES, SPLITS, stored_arrays
from fedpeft.data.partition import SPELLINGS
from fedpeft.data.vqa_templates import Subject

EXPECTED = """
    SOURCE/<class>/*.png            one folder of images for each class, or
    SOURCE/<set>/<class>/*.png      several such sets, or
    <name>.npz                      a file of MedMNIST, or a folder of them"""
_SHOWN = 8
_OF_MEDMNIST = {
    "pathmnist": ("colon-pathology", "histopathology", "colon", "tissue"),
    "chestmnist": ("chest-x-ray", "x-ray", "lung", "disease"),
    "pneumoniamnist": ("chest-x-ray", "x-ray", "lung", "disease"),
    "dermamnist": ("dermatoscope", "dermatoscopy", "skin", "disease"),
    "octmnist": ("retinal-oct", "optical coherence tomography", "eye", "disease"),
    "retinamnist": ("fundus-camera", "fundus photography", "eye", "grade"),
    "breastmnist": ("ultrasound", "ultrasound", "breast", "disease"),
    "bloodmnist": ("blood-microscope", "microscopy", "blood", "other"),
    "tissuemnist": ("kidney-microscope", "microscopy", "kidney", "tissue"),
    "organamnist": ("abdominal-ct", "ct", "", "anatomy"),
    "organcmnist": ("abdominal-ct", "ct", "", "anatomy"),
    "organsmnist": ("abdominal-ct", "ct", "", "anatomy"),
}


class Item(NamedTuple):
    """One image: its path in the site's folder, its classes, and how it is written there."""

    name: str
    names: tuple[str, ...]
    write: Callable[[Path], object]


class Source(NamedTuple):
    """One set: the site that gets it, its name, what is known of all its images, the images, and what is no image."""

    site: str
    name: str
    subject: Subject
    items: list[Item]
    left_out: tuple[tuple[str, int], ...] = ()


def sources(path: Path, *, modality: str = "", anatomy: str = "", classes_are: str = "disease") -> list[Source]:
    """Return the sets at a path.

    Args:
        path: a file of MedMNIST, or a folder as above.
        modality, anatomy, classes_are: see `Subject`, for folders of classes.

    Raises:
        DataError: it is none of these; the message shows what is expected and what is there.
    """
    if path.suffix == ".npz" and path.is_file():
        return [_medmnist(path)]
    if not path.is_dir():
        raise DataError(f"{path} is neither a folder nor a file of MedMNIST (.npz); correct the path.")
    if files := _largest(path):
        return [_medmnist(file) for file in files]
    known = {"modality": modality, "anatomy": anatomy, "classes_are": classes_are}
    below = _folders(path)
    if any(_holds_images(folder) for folder in below):
        return [_folder(path, below, **known)]
    inner = {folder: _folders(folder) for folder in below}
    with_classes = {folder: own for folder, own in inner.items() if any(map(_holds_images, own))}
    if not with_classes:
        here = ", ".join(repr(entry.name) for entry in sorted(path.iterdir())[:_SHOWN]) or "nothing"
        raise DataError(f"{path} holds no images in class folders. Expected:{EXPECTED}\nThere is {here}.")
    if {folder.name.lower() for folder in with_classes} <= SPELLINGS.keys():
        return [_folder(path, [own for folders in with_classes.values() for own in folders], **known)]
    return [_folder(folder, own, **known) for folder, own in with_classes.items()]


def _folders(path: Path) -> list[Path]:
    return [e for e in sorted(path.iterdir()) if e.is_dir() and not is_hidden(e.name)]


def _holds_images(folder: Path) -> bool:
    return any(is_image(file) for file in folder.iterdir())


def _folder(root: Path, classes: list[Path], *, modality: str, anatomy: str, classes_are: str) -> Source:
    items = []
    for folder in classes:
        for file in sorted(filter(is_image, folder.iterdir())):
            name = f"images/{root.resolve().name}/{file.relative_to(root).as_posix()}"
            items.append(Item(name, (_class(folder),), partial(_copy, file)))
    others = len(files_below(root)) - len(items)
    known = tuple(sorted({name for item in items for name in item.names}))
    site = re.sub(r"[^a-z0-9]+", "-", root.resolve().name.lower()).strip("-") or "site"
    subject = Subject(modality, anatomy, known, classes_are)
    left_out = (("no image in a class folder", others),) if others else ()
    return Source(site, root.resolve().name, subject, items, left_out)


def _class(folder: Path) -> str:
    return normalize(folder.name.replace("_", " "))


def _copy(file: Path, target: Path) -> None:
    open_image(file)  # what cannot be read is refused now, not in a round of a federation
    shutil.copyfile(file, target)


def _largest(path: Path) -> list[Path]:
    """Return the files of MedMNIST in a folder, of each set the one with the largest images."""
    of_sets = ([path / f"{kind.name}{size}.npz" for size in SIZES] for kind in SETS)
    return [files[0] for named in of_sets if (files := [file for file in named if file.is_file()])]


def _medmnist(file: Path) -> Source:
    kind = next((kind for kind in SETS if any(file.stem == f"{kind.name}{size}" for size in SIZES)), None)
    if kind is None:
        raise DataError(f"{file} is none of MedMNIST's files, so its classes have no names; use class folders.")
    site, modality, anatomy, classes_are = _OF_MEDMNIST[kind.name]
    classes = (*kind.classes, "no finding") if kind.labelled else kind.classes
    items = []
    for split in SPLITS:
        images, labels = stored_arrays(file, split, kind)
        for number, (image, row) in enumerate(zip(images, labels, strict=True)):
            numbers = np.flatnonzero(row) if kind.labelled else row
            names = tuple(kind.classes[int(index)] for index in numbers) or ("no finding",)
            items.append(Item(f"images/{kind.name}/{split}-{number}.png", names, partial(_save, image)))
    return Source(site, kind.name, Subject(modality, anatomy, classes, classes_are), items)


def _save(image: np.ndarray, target: Path) -> None:
    Image.fromarray(image).save(target)

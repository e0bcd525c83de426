# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Photographs with one class each: HAM10000 and Fed-ISIC2019 (skin), Caltech101 and Flowers102."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpeft.core.errors import DataError
from fedpeft.data.folders import contains, dataset_folder, find, image_file, images_below, missing_image
from fedpeft.data.loaders import TAKES, class_example, class_folders, published_set, site_of
from fedpeft.data.partition import ANOTHERS, across_splits
from fedpeft.data.records import Row, csv_rows
from fedpeft.data.registry import packaged
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import NATURAL, DataSettings

HAM_TABLES = tuple(f"HAM10000_metadata{suffix}" for suffix in ("", ".csv", ".tab", ".tsv"))  # Dataverse serves .tab
HAM_CLASSES: dict[str, str] = packaged("class_names")["ham10000"]

ISIC_TABLE, ISIC_METADATA = "train_test_split", "ISIC_2019_Training_Metadata.csv"
ISIC_WHOLE = "fed-isic2019"
ISIC_CENTERS = ("bcn", "vidir-molemax", "vidir-modern", "rosendahl", "mskcc", "vienna-dias")
ISIC_CLASSES = tuple(packaged("class_names")["fed_isic2019"])
ISIC_FOLDS = ("train", "test")

CALTECH_BACKGROUND = "BACKGROUND_Google"
CALTECH_CLASSES: list[str] = packaged("class_names")["caltech101"]

FLOWERS_CLASSES = 102


def load_ham10000(settings: DataSettings) -> SiteData:
    """HAM10000 (Tschandl et al., Sci Data 2018): dermatoscopy of seven kinds of lesions, 10,015 images of 7,470.

        HAM10000_images_part_1/, HAM10000_images_part_2/, HAM10000_metadata (or with .csv, .tab or .tsv)

    The owners publish no split: lesions are split here, so that no lesion is in two splits or at two sites.
    """
    root = dataset_folder(settings)
    table = next((name for name in HAM_TABLES if contains(root, name)), HAM_TABLES[0])
    files = images_below(root)
    examples = []
    for row in csv_rows(find(root, table), ("lesion_id", "image_id", "dx")):
        name, kind = row.text("image_id"), row.text("dx")
        if kind not in HAM_CLASSES:
            raise DataError(
                f"{row.where}: dx is {kind!r:.40}, it must be one of {', '.join(HAM_CLASSES)}; correct that row."
            )
        if name not in files:
            raise missing_image(root / f"{name}.jpg", where=row.where)
        lesion = f"lesion {row.text('lesion_id')}"
        examples.append(class_example(files[name], HAM_CLASSES[kind], image_id=name, group=lesion))
    named = {example.image_id for example in examples}
    return site_of(
        settings,
        "ham10000",
        "HAM10000 (Tschandl et al., Sci Data 2018), real data, split by lesion",
        train=examples,
        left_out=[("the table does not name the image", len(files.keys() - named))],
    )


HAM10000 = published_set("ham10000", load_ham10000, answers=lambda: tuple(HAM_CLASSES.values()), takes=TAKES)


def load_fed_isic2019(settings: DataSettings) -> SiteData:
    """Fed-ISIC2019 (du Terrail et al., FLamby, NeurIPS 2022): dermatoscopy of eight kinds of lesions from six centers.

        ISIC_2019_Training_Input_preprocessed/<image>.jpg, train_test_split      FLamby's table, without extension
        ISIC_2019_Training_Metadata.csv                                          may be missing; says which lesion it is

    A site's name is its center: bcn, vidir-molemax, vidir-modern, rosendahl, mskcc or vienna-dias; fed-isic2019 (or
    None) has all of them. FLamby's split has some lesions on both sides: use `split="image_disjoint"` and the table of
    lesions for whatever claims to generalize. Notes count the lesions on both sides or say that they are not known, and
    count the images of no known lesion where data are divided by lesion. An image that was not downloaded is left out
    and counted.
    """
    root = dataset_folder(settings)
    site = settings.site or ISIC_WHOLE
    every = rows = csv_rows(find(root, ISIC_TABLE), ("image", "target", "center", "fold"))
    if settings.partition == NATURAL and site != ISIC_WHOLE:
        if site not in ISIC_CENTERS:
            known = ", ".join((ISIC_WHOLE, *ISIC_CENTERS))
            raise DataError(f"site={site!r} is not a center of Fed-ISIC2019; choose one of {known}.")
        rows = [row for row in rows if _number(row, "center", ISIC_CENTERS) == ISIC_CENTERS.index(site)]
    files, lesions = images_below(root), _lesions(root)
    there = [row for row in rows if row.text("image") in files]
    parts: dict[str, list[Example]] = {fold: [] for fold in ISIC_FOLDS}
    for row in there:
        if (fold := row.text("fold")) not in parts:
            raise DataError(f"{row.where}: fold is {fold!r:.40}, neither train nor test; put FLamby's table there.")
        parts[fold].append(_isic_example(row, files, lesions))
    own = site_of(
        settings,
        ISIC_WHOLE,
        f"Fed-ISIC2019 (FLamby), real data, {'all centers' if site == ISIC_WHOLE else site}",
        train=parts["train"],
        test=parts["test"],
        left_out=[
            (ANOTHERS, len(every) - len(rows)),
            ("its image is not there", len(rows) - len(there)),
        ],
    )
    return replace(own, notes=(*own.notes, *_notes_on_lesions(settings, own, table=contains(root, ISIC_METADATA))))


def _notes_on_lesions(settings: DataSettings, own: SiteData, *, table: bool) -> list[str]:
    """Return sentences on lesions in several splits, and on images that are divided without a known lesion."""
    placed = [(split, example) for split, examples in own.splits().items() for example in examples]
    remedy = ": put the owners' table there"
    notes = across_splits(placed, groups_are="lesions") if settings.split == "published" else []
    if settings.split == "published" and settings.partition == NATURAL and not table:
        notes.append(
            f"Which lesions are in more than one split is not known, because {ISIC_METADATA} is missing{remedy}."
        )
    alone = sum(not example.group for _, example in placed)
    if alone and (settings.split == "image_disjoint" or settings.partition != NATURAL):
        why = (
            "have no lesion in the owners' table"
            if table
            else f"have no known lesion, because {ISIC_METADATA} is missing"
        )
        hint = "" if table else remedy
        notes.append(f"{alone:,} of {len(placed):,} images {why}, and are divided as different lesions{hint}.")
    return notes


def _isic_example(row: Row, files: Mapping[str, Path], lesions: Mapping[str, str]) -> Example:
    name = row.text("image")
    target = ISIC_CLASSES[_number(row, "target", ISIC_CLASSES)]
    return class_example(files[name], target, image_id=name, group=lesions.get(name, ""))


def _number(row: Row, column: str, names: tuple[str, ...]) -> int:
    text = row.text(column)
    if not text.isdecimal() or int(text) >= len(names):
        raise DataError(
            f"{row.where}: {column} is {text!r:.40}, it must be from 0 to {len(names) - 1}; put FLamby's table there."
        )
    return int(text)


def _lesions(root: Path) -> dict[str, str]:
    """Return the lesion of each image, where the table is there and says it."""
    if not contains(root, ISIC_METADATA):
        return {}
    rows = csv_rows(find(root, ISIC_METADATA), ("image", "lesion_id"))
    return {row.text("image"): f"lesion {row.label('lesion_id')}" for row in rows if row.label("lesion_id")}


FED_ISIC2019 = published_set(
    "fed_isic2019", load_fed_isic2019, answers=lambda: ISIC_CLASSES, takes=TAKES, sites=ISIC_CENTERS, whole=ISIC_WHOLE
)


def load_caltech101(settings: DataSettings) -> SiteData:
    """Caltech101 (Fei-Fei et al., 2004): photographs of 101 kinds of objects.

        101_ObjectCategories/<class>/image_0001.jpg

    The folder BACKGROUND_Google is no class and is left out. The owners publish no split: images are split here, in
    the federated tuning of vision transformers 50:50 (`test_fraction=0.5`).
    """
    root = find(dataset_folder(settings), "101_ObjectCategories", folder=True)
    folders = class_folders(root)
    background = folders.pop(CALTECH_BACKGROUND, [])
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
        left_out=[(f"the folder {CALTECH_BACKGROUND} is no class", len(background))],
    )


CALTECH101 = published_set(
    "caltech101",
    load_caltech101,
    answers=lambda: tuple(name.replace("_", " ") for name in CALTECH_CLASSES),
    takes=TAKES,
)


def load_flowers102(settings: DataSettings) -> SiteData:
    """Flowers102 (Nilsback and Zisserman, 2008): photographs of 102 kinds of flowers, with the owners' split.

        jpg/image_00001.jpg, imagelabels.mat ('labels', counted from 1), setid.mat ('trnid', 'valid', 'tstid')

    The owners' files have numbers and no names; a class is called by its number. `split="paper"`: the federated tuning
    of vision transformers trains on 25 % and tests on 75 %, which are 'trnid' with 'valid' (2040 images) and 'tstid'
    (6149).
    """
    root = dataset_folder(settings)
    labels = _entry(find(root, "imagelabels.mat"), "labels")
    split, folder = find(root, "setid.mat"), find(root, "jpg", folder=True)
    if labels and not 1 <= min(labels) <= max(labels) <= FLOWERS_CLASSES:
        raise DataError(
            f"{root}/imagelabels.mat has a class that is not from 1 to {FLOWERS_CLASSES}; download it again."
        )

    def examples(entry: str) -> list[Example]:
        return [_flower_example(number, labels, folder, where=str(split)) for number in _entry(split, entry)]

    train, validation, test = examples("trnid"), examples("valid"), examples("tstid")
    source = "Flowers102 (Nilsback and Zisserman, 2008), real data"
    if settings.split == "paper":
        whole, source = replace(settings, split="published"), f"{source}, train with validation against test"
        return site_of(whole, "flowers102", source, train=[*train, *validation], test=test)
    return site_of(settings, "flowers102", source, train=train, validation=validation, test=test)


def _flower_example(number: int, labels: list[int], folder: Path, *, where: str) -> Example:
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


FLOWERS102 = published_set(
    "flowers102",
    load_flowers102,
    answers=lambda: tuple(str(number) for number in range(1, FLOWERS_CLASSES + 1)),
    takes=TAKES,
)

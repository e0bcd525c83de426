# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Dermatoscopy with one class for each image: HAM10000 and Fed-ISIC2019."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import BALANCED_ACCURACY
from fedpeft.data.folders import contains, dataset_folder, find, holds, images_below, missing_image, tree
from fedpeft.data.loaders import TAKES, class_example, site_of
from fedpeft.data.records import Row, csv_rows
from fedpeft.data.registry import DataSet, Origin, packaged
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import NATURAL, DataSettings

HAM_FOLDERS = ("ham10000", "HAM10000")
TABLES = tuple(f"HAM10000_metadata{suffix}" for suffix in ("", ".csv", ".tab", ".tsv"))  # Dataverse serves .tab
HAM_CLASSES: dict[str, str] = packaged("class_names")["ham10000"]


def ham10000_answers() -> tuple[str, ...]:
    """Return the seven classes."""
    return tuple(HAM_CLASSES.values())


def load_ham10000(settings: DataSettings) -> SiteData:
    """HAM10000 (Tschandl et al., Sci Data 2018): dermatoscopy of seven kinds of lesions, 10,015 images of 7,470.

        HAM10000_images_part_1/, HAM10000_images_part_2/, HAM10000_metadata (or with .csv, .tab or .tsv)

    The owners publish no split: lesions are split here, so that no lesion is in two splits or at two sites.
    """
    root = dataset_folder(settings, HAM_FOLDERS)
    table = next((name for name in TABLES if contains(root, name)), TABLES[0])
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


HAM_ORIGIN = Origin(title="HAM10000", address="doi.org/10.7910/DVN/DBW86T", terms="CC BY-NC 4.0")
HAM10000 = DataSet(
    load=load_ham10000,
    answers=ham10000_answers,
    takes=TAKES,
    metric=BALANCED_ACCURACY,
    origin=HAM_ORIGIN,
    recognized=holds(("*/HAM10000_metadata*", "*/HAM10000_images_part_1/")),
    layout=tree(load_ham10000.__doc__),
    folders=HAM_FOLDERS,
)


ISIC_FOLDERS = ("fed_isic2019", "Fed-ISIC2019", "fed_isic")
TABLE, METADATA = "train_test_split", "ISIC_2019_Training_Metadata.csv"
WHOLE = "fed-isic2019"
CENTERS = ("bcn", "vidir-molemax", "vidir-modern", "rosendahl", "mskcc", "vienna-dias")
ISIC_CLASSES = tuple(packaged("class_names")["fed_isic2019"])
FOLDS = ("train", "test")


def fed_isic2019_answers() -> tuple[str, ...]:
    """Return the eight classes."""
    return ISIC_CLASSES


def load_fed_isic2019(settings: DataSettings) -> SiteData:
    """Fed-ISIC2019 (du Terrail et al., FLamby, NeurIPS 2022): dermatoscopy of eight kinds of lesions from six centers.

        ISIC_2019_Training_Input_preprocessed/<image>.jpg, train_test_split      FLamby's table, without extension
        ISIC_2019_Training_Metadata.csv                                          may be missing; says which lesion it is

    A site's name is its center: bcn, vidir-molemax, vidir-modern, rosendahl, mskcc or vienna-dias; fed-isic2019 (or
    None) has all of them. FLamby's split has some lesions on both sides: use `split="image_disjoint"` and the table of
    lesions for whatever claims to generalize. An image that was not downloaded is left out and counted.
    """
    root = dataset_folder(settings, ISIC_FOLDERS)
    site = settings.site or WHOLE
    every = rows = csv_rows(find(root, TABLE), ("image", "target", "center", "fold"))
    if settings.partition == NATURAL and site != WHOLE:
        if site not in CENTERS:
            known = ", ".join((WHOLE, *CENTERS))
            raise DataError(f"site={site!r} is not a center of Fed-ISIC2019; choose one of {known}.")
        rows = [row for row in rows if _number(row, "center", CENTERS) == CENTERS.index(site)]
    files, lesions = images_below(root), _lesions(root)
    there = [row for row in rows if row.text("image") in files]
    parts: dict[str, list[Example]] = {fold: [] for fold in FOLDS}
    for row in there:
        if (fold := row.text("fold")) not in parts:
            raise DataError(f"{row.where}: fold is {fold!r:.40}, neither train nor test; put FLamby's table there.")
        parts[fold].append(_example(row, files, lesions))
    return site_of(
        settings,
        WHOLE,
        f"Fed-ISIC2019 (FLamby), real data, {'all centers' if site == WHOLE else site}",
        train=parts["train"],
        test=parts["test"],
        left_out=[
            ("it is another center's", len(every) - len(rows)),
            ("its image is not there", len(rows) - len(there)),
        ],
    )


def _example(row: Row, files: Mapping[str, Path], lesions: Mapping[str, str]) -> Example:
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
    if not contains(root, METADATA):
        return {}
    rows = csv_rows(find(root, METADATA), ("image", "lesion_id"))
    return {row.text("image"): f"lesion {row.label('lesion_id')}" for row in rows if row.label("lesion_id")}


ISIC_ORIGIN = Origin(
    title="Fed-ISIC2019", address="github.com/owkin/FLamby, from challenge.isic-archive.com/data", terms="CC BY-NC 4.0"
)
FED_ISIC2019 = DataSet(
    load=load_fed_isic2019,
    answers=fed_isic2019_answers,
    takes=TAKES,
    metric=BALANCED_ACCURACY,
    origin=ISIC_ORIGIN,
    recognized=holds((f"*/{TABLE}", "*/ISIC_2019_Training_Input_preprocessed/")),
    layout=tree(load_fed_isic2019.__doc__),
    folders=ISIC_FOLDERS,
    sites=CENTERS,
    whole=WHOLE,
)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""HAM10000 (Tschandl et al., Sci Data 2018): dermatoscopy of seven kinds of lesions, 10,015 images of 7,470 lesions.

    HAM10000_images_part_1/, HAM10000_images_part_2/, HAM10000_metadata (or with .csv, .tab or .tsv)

The owners publish no split: lesions are split here, so that no lesion is in two splits or at two sites.
"""

from __future__ import annotations

from fedpeft.core.metrics import BALANCED_ACCURACY
from fedpeft.data.errors import DataError
from fedpeft.data.folders import contains, dataset_folder, find, images_below, missing_image
from fedpeft.data.glance import holds, tree
from fedpeft.data.labelled_images import TAKES, class_example, site_of
from fedpeft.data.records import csv_rows
from fedpeft.data.registry import DataSet, Origin
from fedpeft.data.schema import SiteData
from fedpeft.data.settings import DataSettings

FOLDERS = ("ham10000", "HAM10000")
TABLES = tuple(f"HAM10000_metadata{suffix}" for suffix in ("", ".csv", ".tab", ".tsv"))  # Dataverse serves .tab
CLASSES = {
    "akiec": "actinic keratosis",
    "bcc": "basal cell carcinoma",
    "bkl": "benign keratosis",
    "df": "dermatofibroma",
    "mel": "melanoma",
    "nv": "melanocytic nevus",
    "vasc": "vascular lesion",
}


def answers() -> tuple[str, ...]:
    """Return the seven classes."""
    return tuple(CLASSES.values())


def load(settings: DataSettings) -> SiteData:
    """Load the data set, or one site's part of it.

    Raises:
        DataError: missing folder, table or image, an unknown class, or an empty split.
    """
    root = dataset_folder(settings, FOLDERS)
    table = next((name for name in TABLES if contains(root, name)), TABLES[0])
    files = images_below(root)
    examples = []
    for row in csv_rows(find(root, table), ("lesion_id", "image_id", "dx")):
        name, kind = row.text("image_id"), row.text("dx")
        if kind not in CLASSES:
            raise DataError(
                f"{row.where}: dx is {kind!r:.40}, it must be one of {', '.join(CLASSES)}; correct that row."
            )
        if name not in files:
            raise missing_image(root / f"{name}.jpg", where=row.where)
        lesion = f"lesion {row.text('lesion_id')}"
        examples.append(class_example(files[name], CLASSES[kind], image_id=name, group=lesion))
    named = {example.image_id for example in examples}
    return site_of(
        settings,
        "ham10000",
        "HAM10000 (Tschandl et al., Sci Data 2018), real data, split by lesion",
        train=examples,
        left_out=[("the table does not name the image", len(files.keys() - named))],
    )


ORIGIN = Origin(title="HAM10000", address="doi.org/10.7910/DVN/DBW86T", terms="CC BY-NC 4.0")
DATASET = DataSet(
    load=load,
    answers=answers,
    takes=TAKES,
    metric=BALANCED_ACCURACY,
    origin=ORIGIN,
    recognized=holds(("*/HAM10000_metadata*", "*/HAM10000_images_part_1/")),
    layout=tree(__doc__),
    folders=FOLDERS,
)

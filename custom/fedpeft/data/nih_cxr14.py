# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""NIH ChestX-ray14 (Wang et al., CVPR 2017): chest radiographs with any of 14 findings, read from their reports.

    Data_Entry_2017_v2020.csv (or Data_Entry_2017.csv), images/ or images_001/images/ ... images_012/images/
    train_val_list.txt, test_list.txt       the owners' split by patient; without them the patients are split here

"No Finding" is no label: such an image has none. No patient is in two splits or at two sites. An image whose archive
was not unpacked is left out and counted.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import MACRO_F1
from fedpeft.data.folders import dataset_folder, holds, images_below, tree
from fedpeft.data.loaders import TAKES, label_example, site_of
from fedpeft.data.records import Row, csv_rows, read_text
from fedpeft.data.registry import DataSet, Origin, packaged
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import DataSettings

FOLDERS = ("nih_cxr14", "nih_cxr14_64px", "NIH", "CXR8", "ChestX-ray14")
TABLES = ("Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv")
LISTS = ("train_val_list.txt", "test_list.txt")
NO_FINDING = "No Finding"
FINDINGS: list[str] = packaged("class_names")["nih_cxr14"]
_KEYS = ("Image Index", "Finding Labels", "Patient ID")


def answers() -> tuple[str, ...]:
    """Return the 14 findings."""
    return tuple(_spelled(finding) for finding in FINDINGS)


def load(settings: DataSettings) -> SiteData:
    """Load the data set, or one site's part of it."""
    root = dataset_folder(settings, FOLDERS)
    table = next((root / name for name in TABLES if (root / name).is_file()), None)
    if table is None:
        raise DataError(f"{root} holds neither {TABLES[0]!r} nor {TABLES[1]!r}; put the owners' table there.")
    rows = csv_rows(table, _KEYS)
    files = images_below(root)
    names = [row.text("Image Index") for row in rows]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{table} names the image {twice[0]!r:.80} twice; put the owners' table there.")
    there = {name: row for name, row in zip(names, rows, strict=True) if Path(name).stem in files}
    examples = {name: _example(row, files[Path(name).stem]) for name, row in there.items()}
    left_out = [
        ("its image is not there", len(rows) - len(examples)),
        ("the table does not name the image", len(files.keys() - {Path(name).stem for name in names})),
    ]
    source = "NIH ChestX-ray14 (Wang et al., CVPR 2017), real data"
    lists = [name for name in LISTS if (root / name).is_file()]
    if len(lists) == 1:
        raise DataError(
            f"{root} holds {lists[0]!r} alone, of {LISTS[0]!r} and {LISTS[1]!r}; put both there, or neither."
        )
    if lists:
        listed = [dict.fromkeys(_listed(root / file)) for file in LISTS]
        if both := listed[0].keys() & listed[1].keys():
            raise DataError(f"{LISTS[0]} and {LISTS[1]} both name {min(both)!r:.80}; put the owners' lists there.")
        train, test = ([examples[name] for name in names if name in examples] for names in listed)
        left_out.append(("it is in neither list", len(examples) - len(train) - len(test)))
        return site_of(
            settings,
            "nih-cxr14",
            f"{source}, published split",
            train=train,
            test=test,
            labels=answers(),
            left_out=left_out,
        )
    return site_of(
        settings,
        "nih-cxr14",
        f"{source}, split by patient",
        train=tuple(examples.values()),
        labels=answers(),
        left_out=left_out,
    )


def _listed(file: Path) -> list[str]:
    return [name for line in read_text(file).splitlines() if (name := line.strip())]


def _example(row: Row, file: Path) -> Example:
    findings = [part.strip() for part in row.text("Finding Labels").split("|")]
    unknown = [finding for finding in findings if finding not in (*FINDINGS, NO_FINDING)]
    if unknown:
        raise DataError(f"{row.where}: a finding is none of the owners' 14; correct that row.")
    return label_example(
        file,
        [_spelled(finding) for finding in findings if finding != NO_FINDING],
        image_id=file.stem,
        group=f"patient {row.text('Patient ID')}",
    )


def _spelled(finding: str) -> str:
    return finding.lower().replace("_", " ")


ORIGIN = Origin(
    title="NIH ChestX-ray14",
    address="the NIH Clinical Center, nihcc.app.box.com/v/ChestXray-NIHCC",
    terms="no restriction; name the NIH Clinical Center and Wang et al. 2017",
)
DATASET = DataSet(
    load=load,
    answers=answers,
    takes=TAKES,
    metric=MACRO_F1,
    origin=ORIGIN,
    recognized=holds(*(f"/{name}" for name in TABLES)),
    layout=tree(__doc__),
    folders=FOLDERS,
)

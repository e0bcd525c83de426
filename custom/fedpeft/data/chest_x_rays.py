# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Chest radiographs with any number of findings: NIH ChestX-ray14, and MIMIC-CXR-JPG with its reports.

Open-I and MIMIC-CXR have the 15 labels of FedPIA's tasks 3 and 4, made here from the owners' labels.

This assumes CheXpert's 14 labels and "Others", for a report with none of them; a version of FedPIA's text that does not
come with this project names them so. Table 2 of F3OCUS's supplement shows reports with 13 of the 14, including "No
Finding". The papers print 3,547 pairs of Open-I and 73,348 training samples of MIMIC-CXR (80 % of 91,685), the numbers
of MedViLL (Moon et al., 2022), which has the same 15 labels.

The papers do not say how Open-I's MeSH terms become labels. Here a term counts for a label where CheXpert's labeler
(Irvin et al., AAAI 2019) counts the same words in a report: a scar or interstitial markings are Lung Opacity, a nodule
or a cavity Lung Lesion, congestion Edema, fibrosis or thickened pleura Pleural Other. Terms without such a label, for
example a calcified granuloma or a degenerative spine, have none here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpeft.core.errors import DataError
from fedpeft.data.folders import dataset_folder, either, images_below
from fedpeft.data.loaders import TAKES, label_example, published_set, site_of
from fedpeft.data.records import Row, column_rows, csv_rows, read_text, reading, table
from fedpeft.data.registry import packaged
from fedpeft.data.schema import Example, SiteData, added
from fedpeft.data.settings import AS_POSITIVE, IGNORED, DataSettings

# by CheXpert's label, the MeSH terms that count for it, each without or with one of its qualifiers
MESH: dict[str, list[list[str]]] = packaged("chest_labels")
CHEXPERT = tuple(MESH)
OTHERS = "Others"
CHEST_LABELS = (*CHEXPERT, OTHERS)
NOT_INDEXED = "no indexing"
_YES, _NO, _UNCERTAIN = 1.0, 0.0, -1.0

NIH_TABLES = ("Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv")
NIH_LISTS = ("train_val_list.txt", "test_list.txt")
NO_FINDING = "No Finding"
NIH_FINDINGS: list[str] = packaged("class_names")["nih_cxr14"]
_NIH_COLUMNS = ("Image Index", "Finding Labels", "Patient ID")

MAX_REPORT_BYTES = 2**18
FINDINGS_SECTIONS = frozenset({"FINDINGS", "FINDING", "FINDINGS AND IMPRESSION", "FINDINGS/IMPRESSION"})
_SECTION_HEADER = re.compile(r"[ \t]*([A-Z][A-Z ()/,&-]{2,80}):(.*)")

MIMIC_TABLE = "mimic-cxr-2.0.0-{}"
MIMIC_IMAGES, MIMIC_REPORTS = "files", ("files", "mimic-cxr-reports/files")
FRONTAL = frozenset({"PA", "AP"})
MIMIC_SPLITS = {"train": "train", "validate": "validation", "test": "test"}
_ID = re.compile(r"[0-9]{1,12}", re.ASCII)
_IMAGE = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
Study = tuple[str, str]
Labels = tuple[tuple[str, ...], tuple[str, ...]]


def labels_from_mesh(terms: Iterable[str]) -> tuple[str, ...] | None:
    """Return the labels of terms such as `Opacity/lung/base/left` (Open-I); None: the report is not indexed."""
    split = [[" ".join(part.lower().split()) for part in term.split("/")] for term in terms]
    split = [parts for parts in split if parts[0]]
    if not split or any(parts[0] == NOT_INDEXED for parts in split):
        return None
    return _or_others(
        label
        for label, rules in MESH.items()
        if any(parts[0] == head and {*qualifier} <= {*parts[1:]} for parts in split for head, *qualifier in rules)
    )


def labels_from_chexpert(values: Sequence[str], uncertain: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the labels of a study of MIMIC-CXR, and those that may or may not apply.

    CheXpert's 14 values, in the order of `CHEXPERT`, are 1.0 (yes), 0.0 (no), -1.0 (uncertain: `data.uncertain`) or
    empty (not mentioned, so no).
    """
    numbers = {label: _label_value(value, label) for label, value in zip(CHEXPERT, values, strict=True)}
    counts = (_YES, _UNCERTAIN) if uncertain == AS_POSITIVE else (_YES,)
    labels = [label for label, number in numbers.items() if number in counts]
    unknown = [label for label, number in numbers.items() if number == _UNCERTAIN and uncertain == IGNORED]
    if unknown and not labels:
        return (), (*unknown, OTHERS)
    return _or_others(labels), tuple(unknown)


def _or_others(labels: Iterable[str]) -> tuple[str, ...]:
    return tuple(labels) or (OTHERS,)


def _label_value(value: str, label: str) -> float:
    try:
        number = float(value or _NO)
    except ValueError:
        number = float("nan")
    if number not in (_YES, _NO, _UNCERTAIN):
        raise DataError(f"the value of {label!r} is none of 1.0, 0.0, -1.0 and empty")
    return number


def nih_cxr14_answers() -> tuple[str, ...]:
    """Return the 14 findings."""
    return tuple(_spelled(finding) for finding in NIH_FINDINGS)


def load_nih_cxr14(settings: DataSettings) -> SiteData:
    """NIH ChestX-ray14 (Wang et al., CVPR 2017): chest radiographs with any of 14 findings, read from their reports.

        Data_Entry_2017_v2020.csv (or Data_Entry_2017.csv), images/ or images_001/images/ ... images_012/images/
        train_val_list.txt, test_list.txt       the owners' split by patient; without them the patients are split here

    "No Finding" is no label: such an image has none. No patient is in two splits or at two sites. An image whose
    archive was not unpacked is left out and counted.
    """
    root = dataset_folder(settings)
    table = either(root, *NIH_TABLES, remedy="put the owners' table there")
    rows = csv_rows(table, _NIH_COLUMNS)
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
    lists = [name for name in NIH_LISTS if (root / name).is_file()]
    if len(lists) == 1:
        raise DataError(
            f"{root} holds only {lists[0]!r}, of {NIH_LISTS[0]!r} and {NIH_LISTS[1]!r}; put both there, or neither."
        )
    if lists:
        listed = [dict.fromkeys(_listed(root / file)) for file in NIH_LISTS]
        if both := listed[0].keys() & listed[1].keys():
            raise DataError(
                f"{NIH_LISTS[0]} and {NIH_LISTS[1]} both name {min(both)!r:.80}; put the owners' lists there."
            )
        train: list[Example]
        test: list[Example] | None
        train, test = ([examples[name] for name in names if name in examples] for names in listed)
        left_out.append(("it is in neither list", len(examples) - len(train) - len(test)))
        source = f"{source}, published split"
    else:
        train, test, source = list(examples.values()), None, f"{source}, split by patient"
    return site_of(settings, "nih-cxr14", source, train=train, test=test, labels=nih_cxr14_answers(), left_out=left_out)


def _listed(file: Path) -> list[str]:
    return [name for line in read_text(file).splitlines() if (name := line.strip())]


def _example(row: Row, file: Path) -> Example:
    findings = [part.strip() for part in row.text("Finding Labels").split("|")]
    unknown = [finding for finding in findings if finding not in (*NIH_FINDINGS, NO_FINDING)]
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


NIH_CXR14 = published_set("nih_cxr14", load_nih_cxr14, answers=nih_cxr14_answers, takes=TAKES)


def findings(report: str) -> str:
    """Return the findings of a report, every run of white space one blank; empty: it has no such section.

    They are the text from the header FINDINGS to the next. A header is a line that begins with words in capital letters
    and a colon (`COMPARISON: ___`), as the owners' own tool reads them; text may follow in the same line. The last
    section with text counts, which is the valid one in an amended report. Some reports have one section of both,
    FINDINGS AND IMPRESSION: it counts as well.
    """
    sections: list[tuple[str, list[str]]] = []
    for line in report.splitlines():
        if header := _SECTION_HEADER.match(line):
            sections.append((" ".join(header[1].split()), [header[2]]))
        elif sections:
            sections[-1][1].append(line)
    texts = [" ".join(" ".join(lines).split()) for name, lines in sections if name in FINDINGS_SECTIONS]
    return next((text for text in reversed(texts) if text), "")


def report_file(roots: tuple[Path, ...], subject: str, study: str) -> Path | None:
    """Return the file of a study's report; None: it is not there."""
    name = Path(folder_of(subject), f"s{study}.txt")
    return next((path for root in roots if (path := root / name).is_file()), None)


def folder_of(subject: str) -> Path:
    """Return the folder of a patient, such as `p10/p10000032`."""
    return Path(f"p{subject[:2]}", f"p{subject}")


def read_report(path: Path) -> str:
    """Return the text of a report."""
    return read_text(path, MAX_REPORT_BYTES)


def load_mimic_cxr_jpg(settings: DataSettings) -> SiteData:
    """MIMIC-CXR-JPG 2.0.0 (Johnson et al., 2019): chest radiographs with their reports and CheXpert's labels of these.

        files/p10/p10000032/s50414267/<dicom_id>.jpg
        mimic-cxr-2.0.0-{chexpert,metadata,split}.csv.gz                          or unpacked, .csv
        files/p10/p10000032/s50414267.txt, or the same below mimic-cxr-reports/   the reports, from MIMIC-CXR

    A sample is a frontal view (PA or AP) with the findings of its report and 15 labels (`CHEST_LABELS`). Labels belong
    to a study; `data.uncertain` says what uncertain ones count as, and those that the report does not mention do not
    apply. The owners' split, by patient, is `published`; the papers train on 80 % of the samples, as `image_disjoint`
    does with `test_fraction=0.2`. No patient is in two splits or at two sites.

    Left out and counted: other views, images without file, split or labels, and those whose report is not there or has
    no FINDINGS section. With `data.partition` a site counts the latter two for its own part, and reads no other
    reports. With `data.samples` it reads all of them, because samples are drawn among those with findings.
    """
    root = dataset_folder(settings)
    left_out: Counter[str] = Counter()
    images = _frontal(root, left_out)
    labels = _labels_of_studies(root, settings.uncertain)
    parts = _split(root, images)
    read: dict[str, list[Example]] = {name: [] for name in MIMIC_SPLITS.values()}
    for image, study in images.items():
        file = root / MIMIC_IMAGES / folder_of(study[0]) / f"s{study[1]}" / f"{image}.jpg"
        if image not in parts:
            left_out["the owners' split does not name it"] += 1
        elif study not in labels:
            left_out["its study has no labels"] += 1
        elif not file.is_file():
            left_out["its image is not there"] += 1
        else:
            known, unknown = labels[study]
            example = label_example(file, known, unknown=unknown, image_id=image, group=f"patient {study[0]}")
            read[parts[image]].append(example)
    drawn = settings.samples is not None
    splits = _add_findings(read, root, left_out) if drawn else read
    data = site_of(
        settings,
        "mimic-cxr",
        "MIMIC-CXR-JPG 2.0.0 (Johnson et al., 2019), real data",
        train=splits["train"],
        validation=splits["validation"] or None,
        test=splits["test"],
        labels=CHEST_LABELS,
        left_out=left_out.items(),
    )
    if drawn:
        return data
    without: Counter[str] = Counter()
    own: dict[str, Any] = dict(_add_findings(data.splits(), root, without))
    return replace(data, **own, left_out=added(data.left_out, without.items()))


def _frontal(root: Path, left_out: Counter[str]) -> dict[str, Study]:
    """Return the study of every frontal view, by the name of the image."""
    images: dict[str, Study] = {}
    path = table(root, MIMIC_TABLE.format("metadata"))
    for row, (image, subject, study, view) in column_rows(path, ("dicom_id", "subject_id", "study_id", "ViewPosition")):
        if image in images:
            raise DataError(f"{path}, row {row}: there is another row with its image; keep one of them.")
        if view not in FRONTAL:
            left_out["neither a PA nor an AP view"] += 1
            continue
        if not _IMAGE.fullmatch(image) or not _ID.fullmatch(subject) or not _ID.fullmatch(study):
            raise DataError(
                f"{path}, row {row}: dicom_id is no name of an image, or subject_id or study_id no number; put the "
                f"owners' table there."
            )
        images[image] = subject, study
    return images


def _labels_of_studies(root: Path, uncertain: str) -> dict[Study, Labels]:
    labels: dict[Study, Labels] = {}
    of_values: dict[tuple[str, ...], Labels] = {}
    path = table(root, MIMIC_TABLE.format("chexpert"))
    for row, (subject, study, *values) in column_rows(path, ("subject_id", "study_id", *CHEXPERT)):
        if (subject, study) in labels:
            raise DataError(f"{path}, row {row}: there is another row with its study; keep one of them.")
        if (own := tuple(values)) not in of_values:
            with reading(Row(f"{path}, row {row}", {})):
                of_values[own] = labels_from_chexpert(own, uncertain)
        labels[subject, study] = of_values[own]
    return labels


def _split(root: Path, images: dict[str, Study]) -> dict[str, str]:
    """Return the split of those images that are in one, under the same patient and study."""
    parts: dict[str, str] = {}
    path = table(root, MIMIC_TABLE.format("split"))
    for row, (image, subject, study, split) in column_rows(path, ("dicom_id", "subject_id", "study_id", "split")):
        if split not in MIMIC_SPLITS:
            raise DataError(
                f"{path}, row {row}: split is none of {', '.join(MIMIC_SPLITS)}; put the owners' table there."
            )
        if image in parts:
            raise DataError(f"{path}, row {row}: there is another row with its image; keep one of them.")
        if images.get(image) == (subject, study):
            parts[image] = MIMIC_SPLITS[split]
    return parts


def _add_findings(
    splits: Mapping[str, Sequence[Example]], root: Path, left_out: Counter[str]
) -> dict[str, Sequence[Example]]:
    """Return the examples that have findings, with them; count the others in `left_out`."""
    roots = tuple(root / name for name in MIMIC_REPORTS)
    studies = sorted({_folder(example) for examples in splits.values() for example in examples})
    texts = {folder: _findings(roots, folder) for folder in studies}
    left_out["its report is not there"] += _number_of(None, splits, texts)
    left_out["its report has no findings"] += _number_of("", splits, texts)
    return {
        name: tuple(replace(example, question=text) for example in examples if (text := texts[_folder(example)]))
        for name, examples in splits.items()
    }


def _number_of(text: str | None, splits: Mapping[str, Sequence[Example]], texts: Mapping[Path, str | None]) -> int:
    return sum(texts[_folder(example)] == text for examples in splits.values() for example in examples)


def _folder(example: Example) -> Path:
    """Return the folder of a study, which holds its images."""
    return Path(str(example.image)).parent


def _findings(roots: tuple[Path, ...], folder: Path) -> str | None:
    """Return the findings of the study whose images are in a folder; None: its report is not there."""
    path = report_file(roots, folder.parent.name[1:], folder.name[1:])
    return None if path is None else findings(read_report(path))


MIMIC_CXR_JPG = published_set(
    "mimic_cxr_jpg", load_mimic_cxr_jpg, answers=lambda: CHEST_LABELS, takes=TAKES | {"uncertain"}
)

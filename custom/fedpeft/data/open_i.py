# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Open-I, the chest radiographs of Indiana University with their reports (Demner-Fushman et al., JAMIA 2016).

    CXR1_1_IM-0001-3001.png, ..., ecgen-radiology/1.xml, ...                  as the National Library of Medicine has it
    images/images_normalized/1_IM-0001-3001.dcm.png, ..., indiana_reports.csv, indiana_projections.csv     as on Kaggle

A sample is a frontal view with the findings of its report and the 15 labels (`chest_labels`) of the report's major MeSH
terms, which both layouts have; the terms that a program extracted ("automatic") are in one of them only and are not
used. Words that were removed for privacy stay as XXXX. Lateral views, images without file, images of a report without
findings or without indexing, and images without report are left out and counted, each once; so is a report without
images.

F3OCUS prints 3,547 pairs, among which are reports whose findings are empty and whose impression stands in for them;
it says that findings alone are used, and so it is here. All images of a report stay together: the publisher says
nothing of patients and nearly all have one report. There is no published split; the papers train on 80 %.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fedpeft.core.metrics import MACRO_F1
from fedpeft.data import chest_labels
from fedpeft.data.errors import DataError
from fedpeft.data.folders import dataset_folder, images_below
from fedpeft.data.glance import holds, tree
from fedpeft.data.labelled_images import TAKES, label_example, site_of
from fedpeft.data.open_i_reports import FRONTAL, LATERAL, Report, image_id, reports_below
from fedpeft.data.registry import DataSet, Origin
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import DataSettings

FOLDERS = ("open_i", "Open-I", "openi", "NLMCXR", "chest-xrays-indiana-university")


def answers() -> tuple[str, ...]:
    """Return the 15 labels."""
    return chest_labels.LABELS


def load(settings: DataSettings) -> SiteData:
    """Load the data set, or one site's part of it.

    Raises:
        DataError: missing folder or reports, a file that is not as its publisher wrote it, or an empty split.
    """
    root = dataset_folder(settings, FOLDERS)
    reports, notes = reports_below(root)
    files = _files(root)
    examples: dict[str, Example] = {}
    left_out: Counter[str] = Counter()
    named: set[str] = set()
    for uid, report in reports.items():
        labels = chest_labels.of_mesh(report.terms)
        left_out["a report names no image"] += not report.views
        for name in report.views:
            if name in named:
                raise DataError(f"Two reports in {root} name one image, the second is that of {uid!r:.40}; keep one.")
            named.add(name)
            if why := _why_not(report, name, labels, files):
                left_out[why] += 1
            else:
                examples[name] = label_example(
                    files[name],
                    labels or (),
                    image_id=name,
                    group=f"report {uid}",
                    text=" ".join(report.findings.split()),
                )
    left_out["no report names the image"] = len(files.keys() - named)
    return site_of(
        settings,
        "open-i",
        "Open-I (Demner-Fushman et al., JAMIA 2016), real data, split by report",
        train=tuple(examples.values()),
        labels=answers(),
        left_out=left_out.items(),
        notes=notes,
    )


def _files(root: Path) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for stem, path in images_below(root).items():
        name = image_id(stem)
        if name in files:
            raise DataError(f"Both {files[name]} and {path} are there; keep one of them.")
        files[name] = path
    return files


def _why_not(report: Report, name: str, labels: tuple[str, ...] | None, files: dict[str, Path]) -> str:
    """Return why an image is no sample; empty: it is one."""
    if report.views[name] != FRONTAL:
        return "a lateral view" if report.views[name] == LATERAL else "not known to be a frontal view"
    if name not in files:
        return "its image is not there"
    if labels is None:
        return "its report is missing or not indexed"
    return "" if report.findings.strip() else "its report has no findings"


ORIGIN = Origin(
    title="Open-I",
    address="openi.nlm.nih.gov, kaggle.com/raddar/chest-xrays-indiana-university",
    terms="CC BY-NC-ND 4.0",
)
DATASET = DataSet(
    load=load,
    answers=answers,
    takes=TAKES,
    metric=MACRO_F1,
    origin=ORIGIN,
    recognized=holds(("*/indiana_reports.csv", "*/indiana_projections.csv"), "*/ecgen-radiology/"),
    layout=tree(__doc__),
    folders=FOLDERS,
)

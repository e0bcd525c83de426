# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Open-I, the chest radiographs of Indiana University with their reports (Demner-Fushman et al., JAMIA 2016).

    CXR1_1_IM-0001-3001.png, ..., ecgen-radiology/1.xml, ...                  as the National Library of Medicine has it
    images/images_normalized/1_IM-0001-3001.dcm.png, ..., indiana_reports.csv, indiana_projections.csv     as on Kaggle

A sample is a frontal view with the findings of its report and the 15 labels (`CHEST_LABELS`) of the report's major MeSH
terms, which both layouts have; the terms that a program extracted ("automatic") are in one of them only and are not
used. Words that were removed for privacy stay as XXXX. Lateral views, images without file, images of a report without
findings or without indexing, and images without report are left out and counted, each once; so are reports without
images.

F3OCUS prints 3,547 pairs, including reports with empty findings and an impression instead; it says that only findings
are used, and so it is here. All images of a report stay together: the publisher does not name patients, and nearly all
have one report. There is no published split; the papers train on 80 %.

The reports are XML files of other people: small, flat, and without declarations. A document type could declare entities
that expand endlessly or name other files. None of these files has one, so it is refused where it begins, and only
characters are left to expand.

Kaggle's tables have the view of every image. The publisher's XML files do not: their caption is the name of the
examination ("Xray Chest PA and Lateral"), the same for all images of a report. So in that layout an image is frontal

1. where Kaggle's `indiana_projections.csv` is beside the reports and says so; otherwise
2. where the captions of a report differ, and its own names a frontal view (PA, AP) and no lateral one; otherwise
3. where its name comes first among those of its report. In Kaggle's table that one is frontal in 3,294 of 3,851
   reports; `SiteData.notes` says how many reports depend on this rule.

An image is called `CXR1_1_IM-0001-3001` by the publisher and `1_IM-0001-3001.dcm` by Kaggle; here it is
`CXR1_IM-0001-3001` in both.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from fedpeft.core.errors import DataError
from fedpeft.data import chest_x_rays
from fedpeft.data.folders import contains, dataset_folder, find, images_below
from fedpeft.data.loaders import TAKES, label_example, published_set, site_of
from fedpeft.data.records import csv_rows, text_bytes
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import DataSettings

MAX_XML_BYTES = 2**20
MAX_XML_LEVELS = 50

KAGGLE, PROJECTIONS, NLM = "indiana_reports.csv", "indiana_projections.csv", "ecgen-radiology"
FRONTAL, LATERAL, UNKNOWN = "Frontal", "Lateral", "unknown"
GUESSED = (
    "{} of {} reports do not say which image is the frontal view; the first by name is taken. Kaggle's "
    f"{PROJECTIONS} beside them says it."
)
_VIEW_WORDS = {
    FRONTAL: re.compile(r"\b(pa|ap|frontal|posteroanterior|anteroposterior)\b", re.IGNORECASE),
    LATERAL: re.compile(r"\blat(eral)?\b", re.IGNORECASE),
}
_IMAGE_NAME = re.compile(r"(?:CXR[0-9]+_)?(?:CXR)?([0-9]+_IM.*?)(?:\.dcm)?", re.ASCII)


def xml_root(path: Path) -> Element:
    """Return the root element of a file."""
    builder, level = TreeBuilder(), 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal level
        level += 1
        if level > MAX_XML_LEVELS:
            raise DataError(f"{path} is nested deeper than {MAX_XML_LEVELS} elements; download it again.")
        builder.start(name, attributes)

    def end(name: str) -> None:
        nonlocal level
        level -= 1
        builder.end(name)

    def refuse(*_: object) -> NoReturn:
        raise DataError(f"{path} has a document type, which the owners' files do not have; download it again.")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, builder.data
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    content = text_bytes(path, MAX_XML_BYTES)
    try:
        parser.Parse(content, True)
    except DataError:
        raise
    except (expat.ExpatError, ValueError, LookupError) as error:
        line = f", line {error.lineno}" if isinstance(error, expat.ExpatError) else ""
        raise DataError(f"{path}{line}: it is not valid XML; download it again.") from error
    return builder.close()


@dataclass(frozen=True, slots=True)
class Report:
    """One report."""

    findings: str  # that section; may be empty
    terms: tuple[str, ...]  # its major MeSH terms with their qualifiers
    views: dict[str, str]  # by image, "Frontal", "Lateral" or, where it is not given, "unknown"


def reports_below(root: Path) -> tuple[dict[str, Report], tuple[str, ...]]:
    """Return the reports by their number, and notes for `SiteData`."""
    tables, files = contains(root, KAGGLE), contains(root, NLM, folder=True)
    if tables and files:
        raise DataError(f"{root} holds both {KAGGLE!r} and {NLM!r}; keep the reports of one of them.")
    if tables:
        return _read_kaggle(root), ()
    if not files:
        raise DataError(f"{root} holds neither {KAGGLE!r} nor the folder {NLM!r}; unpack the reports there.")
    return _read_nlm(root)


def image_id(name: str) -> str:
    """Return an image's name in one form for both layouts; any other name stays as it is."""
    matched = _IMAGE_NAME.fullmatch(name)
    return f"CXR{matched[1]}" if matched else name


def _read_kaggle(root: Path) -> dict[str, Report]:
    views: dict[str, dict[str, str]] = {}
    for image, (uid, view) in _projections(root).items():
        views.setdefault(uid, {})[image] = view
    reports: dict[str, Report] = {}
    for row in csv_rows(find(root, KAGGLE), ("uid", "MeSH", "findings")):
        uid = row.text("uid")
        if uid in reports:
            raise DataError(f"{row.where}: there is another row with its uid; keep one of them.")
        reports[uid] = Report(row.label("findings"), tuple(row.label("MeSH").split(";")), views.pop(uid, {}))
    return {**reports, **{uid: Report("", (), own) for uid, own in views.items()}}


def _projections(root: Path) -> dict[str, tuple[str, str]]:
    """Return the report and the view of each image."""
    images: dict[str, tuple[str, str]] = {}
    for row in csv_rows(find(root, PROJECTIONS), ("uid", "filename", "projection")):
        name, view = image_id(Path(row.text("filename")).stem), row.text("projection")
        if view not in (FRONTAL, LATERAL):
            raise DataError(f"{row.where}: projection is {view!r:.40}, neither Frontal nor Lateral; correct that row.")
        if name in images:
            raise DataError(f"{row.where}: there is another row with its image; keep one of them.")
        images[name] = (row.text("uid"), view)
    return images


def _read_nlm(root: Path) -> tuple[dict[str, Report], tuple[str, ...]]:
    read = {path.stem: _report(path) for path in sorted(find(root, NLM, folder=True).glob("*.xml"))}
    if not read:
        raise DataError(f"{find(root, NLM, folder=True)} holds no .xml file; unpack the reports there.")
    if contains(root, PROJECTIONS):
        known = {name: view for name, (_, view) in _projections(root).items()}
        views = {uid: {name: known.get(name, UNKNOWN) for name in report.views} for uid, report in read.items()}
        return {uid: replace(report, views=views[uid]) for uid, report in read.items()}, ()
    reports = {uid: _assume_first_is_frontal(report) for uid, report in read.items()}
    guessed = sum(report is not read[uid] for uid, report in reports.items())
    return reports, ((GUESSED.format(guessed, len(reports)),) if guessed else ())


def _assume_first_is_frontal(report: Report) -> Report:
    """Mark the first image of unknown view as the frontal one, where no image is known to be frontal."""
    unknown = [name for name, view in report.views.items() if view == UNKNOWN]
    if not unknown or FRONTAL in report.views.values():
        return report
    return replace(report, views={**report.views, min(unknown): FRONTAL})


def _report(path: Path) -> Report:
    """Return the report of an XML file; captions only say the views where they differ."""
    root = xml_root(path)
    captions = {
        image_id(image.get("id", "").strip()): " ".join(
            text for part in image.iter("caption") for text in part.itertext()
        )
        for image in root.iter("parentImage")
        if image.get("id", "").strip()
    }
    of_each = len(set(captions.values())) > 1
    findings = (part for part in root.iter("AbstractText") if part.get("Label", "").strip().upper() == "FINDINGS")
    return Report(
        findings=" ".join("".join(part.itertext()).strip() for part in findings),
        terms=tuple("".join(term.itertext()) for mesh in root.iter("MeSH") for term in mesh.iter("major")),
        views={name: _view(caption) if of_each else UNKNOWN for name, caption in captions.items()},
    )


def _view(caption: str) -> str:
    named = [view for view, words in _VIEW_WORDS.items() if words.search(caption)]
    return named[0] if len(named) == 1 else UNKNOWN


def load(settings: DataSettings) -> SiteData:
    """Load the data set, or one site's part of it."""
    root = dataset_folder(settings)
    reports, notes = reports_below(root)
    files = _files(root)
    examples: dict[str, Example] = {}
    left_out: Counter[str] = Counter()
    named: set[str] = set()
    for uid, report in reports.items():
        labels = chest_x_rays.labels_from_mesh(report.terms)
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
        labels=chest_x_rays.CHEST_LABELS,
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


DATASET = published_set("open_i", load, layout=__doc__, answers=lambda: chest_x_rays.CHEST_LABELS, takes=TAKES)

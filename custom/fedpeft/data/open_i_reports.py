# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The reports of Open-I in both layouts, and which of their images is a frontal view.

Kaggle's tables have the view of every image, the publisher's XML files do not: their caption is the name of the
examination ("Xray Chest PA and Lateral"), the same for all images of a report. So in that layout an image is frontal

1. where Kaggle's `indiana_projections.csv` lies beside the reports and says so; otherwise
2. where the captions of a report differ, and its own names a frontal view (PA, AP) and no lateral one; otherwise
3. where its name comes first among those of its report. In Kaggle's table that one is frontal in 3,294 of 3,851
   reports; how many reports depend on this rule is in `SiteData.notes`.

An image is called `CXR1_1_IM-0001-3001` by the publisher and `1_IM-0001-3001.dcm` by Kaggle; here it is
`CXR1_IM-0001-3001` in both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from fedpeft.data.errors import DataError
from fedpeft.data.folders import contains, find
from fedpeft.data.records import csv_rows
from fedpeft.data.untrusted_xml import xml_root

KAGGLE, PROJECTIONS, NLM = "indiana_reports.csv", "indiana_projections.csv", "ecgen-radiology"
FRONTAL, LATERAL, UNKNOWN = "Frontal", "Lateral", "unknown"
GUESSED = (
    "{} of {} reports do not say which image is the frontal view; the first by name is taken. Kaggle's "
    f"{PROJECTIONS} beside them says it."
)
_NAMED = {
    FRONTAL: re.compile(r"\b(pa|ap|frontal|posteroanterior|anteroposterior)\b", re.IGNORECASE),
    LATERAL: re.compile(r"\blat(eral)?\b", re.IGNORECASE),
}
_NAME = re.compile(r"(?:CXR[0-9]+_)?(?:CXR)?([0-9]+_IM.*?)(?:\.dcm)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Report:
    """One report.

    Args:
        findings: that section; may be empty.
        terms: its major MeSH terms with their qualifiers.
        views: by image, "Frontal", "Lateral" or, where nobody says it, "unknown".
    """

    findings: str
    terms: tuple[str, ...]
    views: dict[str, str]


def reports_below(root: Path) -> tuple[dict[str, Report], tuple[str, ...]]:
    """Return the reports by their number, and notes for `SiteData`.

    Raises:
        DataError: there are no reports, or those of both layouts, or a file is not as its publisher wrote it.
    """
    tables, files = contains(root, KAGGLE), contains(root, NLM, folder=True)
    if tables and files:
        raise DataError(f"{root} holds both {KAGGLE!r} and {NLM!r}; keep the reports of one of them.")
    if tables:
        return _of_kaggle(root), ()
    if not files:
        raise DataError(f"{root} holds neither {KAGGLE!r} nor the folder {NLM!r}; unpack the reports there.")
    return _of_nlm(root)


def image_id(name: str) -> str:
    """Return an image's name, the same in both layouts; a name that is of neither stays as it is."""
    matched = _NAME.fullmatch(name)
    return f"CXR{matched[1]}" if matched else name


def _of_kaggle(root: Path) -> dict[str, Report]:
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


def _of_nlm(root: Path) -> tuple[dict[str, Report], tuple[str, ...]]:
    read = {path.stem: _report(path) for path in sorted(find(root, NLM, folder=True).glob("*.xml"))}
    if not read:
        raise DataError(f"{find(root, NLM, folder=True)} holds no .xml file; unpack the reports there.")
    if contains(root, PROJECTIONS):
        known = {name: view for name, (_, view) in _projections(root).items()}
        views = {uid: {name: known.get(name, UNKNOWN) for name in report.views} for uid, report in read.items()}
        return {uid: replace(report, views=views[uid]) for uid, report in read.items()}, ()
    reports = {uid: _with_first(report) for uid, report in read.items()}
    guessed = sum(report is not read[uid] for uid, report in reports.items())
    return reports, ((GUESSED.format(guessed, len(reports)),) if guessed else ())


def _with_first(report: Report) -> Report:
    """Take the first of the images whose view nobody says for the frontal one, where no other is."""
    unknown = [name for name, view in report.views.items() if view == UNKNOWN]
    if not unknown or FRONTAL in report.views.values():
        return report
    return replace(report, views={**report.views, min(unknown): FRONTAL})


def _report(path: Path) -> Report:
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
    named = [view for view, words in _NAMED.items() if words.search(caption)]
    return named[0] if len(named) == 1 else UNKNOWN

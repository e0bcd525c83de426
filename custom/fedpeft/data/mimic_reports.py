# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The FINDINGS section of a report of MIMIC-CXR: the text from that header to the next.

A header is a line that begins with words in capital letters and a colon (`COMPARISON: ___`), as the owners' own tool
reads them; text may follow in the same line. Of several sections of that name the last with text counts, which in an
amended report is the valid one. Some reports have one section of both, FINDINGS AND IMPRESSION: it counts as well.
"""

from __future__ import annotations

import re
from pathlib import Path

from fedpeft.data.records import read_text

MOST_BYTES = 2**18
SECTIONS = frozenset({"FINDINGS", "FINDING", "FINDINGS AND IMPRESSION", "FINDINGS/IMPRESSION"})
_HEADER = re.compile(r"[ \t]*([A-Z][A-Z ()/,&-]{2,80}):(.*)")


def findings(report: str) -> str:
    """Return the findings of a report, every run of white space one blank; empty: it has no such section."""
    sections: list[tuple[str, list[str]]] = []
    for line in report.splitlines():
        if header := _HEADER.match(line):
            sections.append((" ".join(header[1].split()), [header[2]]))
        elif sections:
            sections[-1][1].append(line)
    texts = [" ".join(" ".join(lines).split()) for name, lines in sections if name in SECTIONS]
    return next((text for text in reversed(texts) if text), "")


def report_file(roots: tuple[Path, ...], subject: str, study: str) -> Path | None:
    """Return the file of a study's report; None: it is not there."""
    name = Path(folder_of(subject), f"s{study}.txt")
    return next((path for root in roots if (path := root / name).is_file()), None)


def folder_of(subject: str) -> Path:
    """Return the folder of a patient, such as `p10/p10000032`."""
    return Path(f"p{subject[:2]}", f"p{subject}")


def read(path: Path) -> str:
    """Return the text of a report.

    Raises:
        DataError: it cannot be read, is no UTF-8, or is larger than 256 KiB.
    """
    return read_text(path, MOST_BYTES)

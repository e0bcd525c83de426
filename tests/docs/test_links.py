# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every relative link of the README and the pages leads to a file that exists, and to a heading that it has."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [path for folder in (".", "docs", "benchmarks/results") for path in sorted((ROOT / folder).glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchors(page: str) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    targets = []
    for target in LINK.findall(FENCED.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            targets.append(target)
    return targets


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(page):
    assert broken(page) == []


def test_a_broken_link_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One two: three\n[a](page.md#one-two-three) [b](page.md#four) [c](none.md) [d](https://e.org)\n")
    assert broken(page) == ["page.md#four", "none.md"]


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text()
    assert all(f"({page.name})" in index for page in (ROOT / "docs").glob("*.md") if page.name != "index.md")

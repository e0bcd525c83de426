# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every threat on the security page names a test that is there, and the privacy page begins with who decides."""

import re
from dataclasses import fields
from pathlib import Path

from grids import each

from fedpeft.job.site_policy import SitePolicy

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
TABLE = re.search(r"<!-- threats:begin -->\n(.*?)<!-- threats:end -->", PAGE, re.DOTALL)[1]
ROWS = [[cell.strip() for cell in row.strip("|").split("|")] for row in TABLE.strip().splitlines()[2:]]


@each(("threat", "protection", "test"), ROWS)
def test_the_protection_is_tested(threat, protection, test):
    file, _, name = test.strip("`").partition("::")
    assert threat
    assert protection
    content = (ROOT / file).read_text()
    assert f"def {name}(" in content if name else "def test_" in content


SCREEN = 25  # lines


def test_the_privacy_page_begins_with_a_screen_of_defaults_risks_and_who_decides():
    first = (ROOT / "docs" / "privacy.md").read_text().split("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in first if line.startswith("|")]
    assert len(first) <= SCREEN
    assert rows[0] == ["what", "default", "risk", "who decides"]
    assert all(len(row) == len(rows[0]) and all(row) for row in rows)
    named = {name for row in rows for name in re.findall(r"`(\w+)(?:: \w+)?`", row[-1])}
    assert (
        {"connector", "head", "metrics", "sum_with", "min_score_samples"}
        == named
        <= {one.name for one in fields(SitePolicy)}
    )

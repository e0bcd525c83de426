# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every threat on the security page names a test that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
TABLE = re.search(r"<!-- threats:begin -->\n(.*?)<!-- threats:end -->", PAGE, re.DOTALL)[1]
ROWS = [[cell.strip() for cell in row.strip("|").split("|")] for row in TABLE.strip().splitlines()[2:]]


@pytest.mark.parametrize(("threat", "protection", "test"), ROWS, ids=[row[0][:40] for row in ROWS])
def test_the_protection_is_tested(threat, protection, test):
    file, _, name = test.strip("`").partition("::")
    assert threat
    assert protection
    content = (ROOT / file).read_text()
    assert f"def {name}(" in content if name else "def test_" in content

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site sends beyond what it announced is not read, whatever it is, and costs that site the round."""

import json

import pytest

pytestmark = pytest.mark.simulator
SERVER_MB = 800  # 520 in this job; 1050 and 1210 where the giant of 256 MB is read


@pytest.mark.parametrize("deed", ["giant", "giant text"])
def test_a_message_beyond_what_was_announced_is_not_read(sabotaged, deed):
    run = sabotaged(deed, "federation.quorum=1", "federation.grace=20")
    assert run.code == 0, run.text
    (fault,) = json.loads((run.results / "manifest.json").read_text())["faults"]
    assert (fault["site"], fault["round"]) == ("vqa-rad", 2)
    assert "site vqa-rad sent more than" in fault["what"]
    assert float(run.peak.read_text()) < SERVER_MB * 1e6

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Replies that are not read, or never come: they cost that site the round, and it takes part in the next one."""

import json

import pytest
from simulator_runs import sabotage

pytestmark = pytest.mark.simulator
SERVER_MB = 800  # 520 in this job; 1050 and 1210 where the giant of 256 MB is read
TOO_LARGE = "site vqa-rad sent more than"
# the giants last: under load, one of them was once named as the reason why a later round lacked a reply
FAULTS = {2: ("hang", "sent no usable reply in round 2"), 4: ("giant", TOO_LARGE), 6: ("giant text", TOO_LARGE)}


@pytest.fixture(scope="module")
def run(tmp_path_factory, sections):
    """A job of seven rounds with a fault in every second one."""
    faults = {number: fault for number, (fault, _) in FAULTS.items()}
    folder = tmp_path_factory.mktemp("silent")
    chosen = "federation.quorum=1", "federation.grace=20", "method.robust.update_factor=0", "training.rounds=7"
    done = sabotage(folder, sections, faults, *chosen)
    assert done.code == 0, done.text
    done.manifest = json.loads((done.results / "manifest.json").read_text())
    done.rounds = json.loads((done.results / "history.json").read_text())["rounds"]
    return done


@pytest.mark.parametrize("number", FAULTS, ids=lambda number: FAULTS[number][0])
def test_a_reply_that_is_not_read_costs_its_site_the_round_and_nothing_else(run, number):
    _, reason = FAULTS[number]
    (fault,) = (fault for fault in run.manifest["faults"] if fault["round"] == number)
    assert fault["site"] == "vqa-rad"
    assert reason in fault["what"]
    assert reason in run.rounds[number - 1]["rejected"]["vqa-rad"]
    assert set(run.rounds[number]["sites"]) == {"slake", "vqa-rad"}


def test_no_other_fault_is_in_the_manifest(run):
    assert len(run.rounds) == 7
    assert len(run.manifest["faults"]) == len(FAULTS)


def test_what_goes_beyond_what_was_announced_is_not_read(run):
    assert float(run.peak.read_text()) < SERVER_MB * 1e6

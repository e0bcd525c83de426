# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""From a folder to a table: `fedpeft new` and then `fedpeft simulate`, in a folder that is no clone."""

import layouts
import pytest
from simulator_runs import simulate, workspace_for_tests

from fedpeft import cli
from fedpeft.job import writing

pytestmark = pytest.mark.simulator


def class_folders(root):
    for name in ("normal", "ill"):
        for number in range(16):
            layouts.picture(root / name / f"{number}.png")


def manifests(root):
    for site in ("north", "south", "west"):
        rows = ["image,question,answer"]
        for number in range(12):
            layouts.picture(root / site / "scans" / f"{site}-{number}.png")
            rows.append(f"scans/{site}-{number}.png,Is there a fracture?,{('yes', 'no')[number % 2]}")
        layouts.lines(root / site / "manifest.csv", rows)


@pytest.mark.parametrize(
    ("write", "sites", "measured"),
    [
        (class_folders, ["client-1", "client-2"], "Balanced accuracy"),
        (manifests, ["north", "south", "west"], "Accuracy"),
    ],
)
def test_a_folder_becomes_a_table(write, sites, measured, tmp_path, monkeypatch):
    write(tmp_path / "data")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("FEDPEFT_DATA", raising=False)
    monkeypatch.setattr(writing, "has_wheels", lambda: False)
    small = ["training.rounds=2", "method.probe_samples=4"]
    assert cli.main(["new", "own", "--data", "../data", *(part for one in small for part in ("--set", one))]) == 0
    run = simulate("jobs/own", workspace_for_tests(tmp_path / "ws"), threads=len(sites))
    assert run.code == 0, run.text
    assert f"{measured} (%) after round 2" in run.text
    assert all(site in run.text for site in sites)

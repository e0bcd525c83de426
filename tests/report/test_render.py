# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The package's two functions."""

import io
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from histories import complete, gaps, record, write
from rich.console import Console

from fedpeft.core.errors import FedpeftError
from fedpeft.report import render, show
from fedpeft.report.history_reader import HistoryError

pytestmark = pytest.mark.slow


def test_four_files_with_the_same_bytes_each_time(tmp_path):
    write(tmp_path, gaps())
    first, second = render(tmp_path, tmp_path / "a" / "b"), render(tmp_path / "history.json", str(tmp_path / "c"))
    names = {"markdown": "tables.md", "csv": "accuracy.csv", "picture": "convergence.svg", "page": "report.html"}
    assert {kind: path.name for kind, path in first.items()} == names
    for kind in names:
        assert first[kind].read_bytes() == second[kind].read_bytes()
    picture = ElementTree.fromstring(first["picture"].read_text())
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert min(float(picture.get(side).removesuffix("pt")) for side in ("width", "height")) > 200


def measured():
    """A run with all pictures."""
    made = complete(rounds=1)
    for values in made["rounds"][0]["sites"].values():
        values |= {"loss_start": 2.0, "loss_end": 1.0}
    return made


def test_a_report_keeps_no_picture_of_another_run(tmp_path):
    write(tmp_path / "first", measured())
    write(tmp_path / "second", record(("a", "b"), 1))
    out = tmp_path / "report"
    first = {file.name for file in render(tmp_path / "first", out).values()}
    for own in ("surface.svg", "curves.svg", "notes.svg"):
        (out / own).write_text("")
    second = {file.name for file in render(tmp_path / "second", out).values()}
    assert first - second == {"sent.svg", "losses.svg", "schedule.svg", "fronts.svg"}
    assert {file.name for file in out.iterdir()} == second | {"curves.svg", "notes.svg"}


@pytest.mark.parametrize("source", [".", "history.json"])
def test_a_runs_own_report_keeps_what_the_option_surface_drew(tmp_path, source):
    write(tmp_path, record(("a", "b"), 1))
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "surface.svg").write_text("")
    render(tmp_path / source, tmp_path / "report")
    assert (tmp_path / "report" / "surface.svg").exists()


def test_a_broken_history_writes_nothing(tmp_path):
    write(tmp_path, {"job": "a"})
    with pytest.raises(HistoryError):
        render(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_where_the_folder_should_be(tmp_path):
    write(tmp_path, record(rounds=1))
    (tmp_path / "out").write_text("")
    with pytest.raises(FedpeftError, match=r"out .*; name another folder"):
        render(tmp_path, tmp_path / "out")


def test_show_prints_the_metrics_that_are_named(tmp_path):
    write(tmp_path, record())
    for metrics, count in (((), 0), (("overall",), 1), (("overall", "open", "closed"), 3)):
        console = Console(file=io.StringIO(), width=120)
        show(tmp_path, console=console, metrics=metrics)
        assert console.file.getvalue().count("round by round") == count


def test_importing_the_package_is_light():
    heavy = "{'matplotlib', 'rich', 'scipy', 'numpy', 'torch'}"
    code = f"import sys; import fedpeft.report; loaded = {heavy} & set(sys.modules); assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The notebooks run without a kernel, and print what they show; each is small, and on the index page."""

import contextlib
import io
import json
from pathlib import Path

import pytest
from matplotlib import pyplot as plt

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def printed(cell) -> str:
    return "".join("".join(output["text"]) for output in cell["outputs"] if output.get("name") == "stdout")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    namespace: dict = {"__name__": "__main__"}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            now = io.StringIO()
            with contextlib.redirect_stdout(now):
                exec(compile("".join(cell["source"]), path.name, "exec"), namespace)
            assert now.getvalue() == printed(cell)
    plt.close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_executed_without_an_error_and_is_small(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    assert path.stat().st_size < 60_000


def test_every_notebook_is_on_the_index_page():
    index = (DOCS / "index.md").read_text()
    assert len(NOTEBOOKS) == 5
    assert all(f"(notebooks/{path.name})" in index for path in NOTEBOOKS)

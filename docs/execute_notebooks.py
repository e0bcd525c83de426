# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Execute the notebooks and keep what their cells print and draw: `python docs/execute_notebooks.py`.

Needs `pip install nbclient ipykernel`. The tests execute the cells without a kernel and compare what they print.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "notebooks"


def execute(path: Path) -> None:
    """Execute a notebook in an empty folder; warnings and progress bars are not kept."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, resources=resources, record_timing=False, timeout=None).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec",)}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        execute(path)
        print(path.name)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The code of every page runs and prints what the page says."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from snippets import run_page

from fedpeft.core.workspace import seed

ROOT = Path(__file__).parents[2]
LONG = {
    "embedded_benchmark.md",
    "benchmarks.md",
    "benchmarks_appendix.md",
    "speed.md",
}  # their commands are the benchmarks themselves
SLOW = {"README.md", "predict.md", "python.md"}  # they train
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in LONG)]


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with what a clone has and a finished run, as the current folder."""
    shutil.copytree(ROOT / "app_configs", tmp_path / "app_configs")
    run = tmp_path / "simulator_workspace" / "server" / "simulate_job" / "fedpeft"
    run.mkdir(parents=True)
    seed(tmp_path / "simulator_workspace")
    site = {"overall": 0.5, "open": None, "closed": 0.5, "loss": 1.0, "samples": 4}
    record = {"job": "small", "method": "FedPIA", "procedural": True, "source": "data: phantom", "rounds": []}
    (run / "history.json").write_text(json.dumps({**record, "rounds": [{"round": 1, "sites": {"slake": site}}]}))
    save_file({"layer.0.output.down.bias": torch.zeros(2)}, run / "global.safetensors")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page.name in SLOW), id=page.name) for page in PAGES]
)
def test_a_pages_code_runs_and_prints_what_the_page_says(page, clone):
    assert not (wrong := run_page(page.name, page.read_text())), "\n".join(wrong)


@pytest.mark.parametrize(
    ("page", "expected_text"),
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "the page says\n2"),
        ("```python\nprint(1)\n```\n\n```text\n1\n```\n", None),
        ("```python\nprint(1)\n```\n\nand\n\n```text\n2\n```\n", None),
        ("```bash\n$ echo one two\none ...\n$ echo three\nfour\n```\n", "$ echo three"),
        ("```bash\n$ false\n```\n", "exit code 1"),
        ("```yaml\n# a.yml\nx: 1\n```\n\n```bash\n$ cat a.yml\nx: 2\n```\n", "x: 1"),
    ],
)
def test_the_runner_sees_a_page_that_is_wrong(page, expected_text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = run_page("page", page)
    assert bool(wrong) == (expected_text is not None)
    assert expected_text is None or expected_text in wrong[0]

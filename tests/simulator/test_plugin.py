# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""examples/plugin, installed beside fedpeft: its adapter, score, data set and task in a job."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.simulator


@pytest.fixture
def environment(tmp_path_factory):
    """The environment of a Python that has the example installed."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(ROOT / "examples" / "plugin", folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(folder / "site"), str(source)], check=True)
    path = os.pathsep.join(filter(None, (str(folder / "site"), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def test_a_job_of_an_installed_plugin_knows_its_names_and_ends_with_its_adapter(environment, tmp_path):
    shutil.copytree(ROOT / "app_configs", tmp_path / "app_configs")
    (tmp_path / "jobs").mkdir()
    with (tmp_path / "app_configs" / "jobs.yml").open("a") as recipes:
        parts = "tasks/phantom, tasks/stripes, backbones/tiny_vilt, methods/fedpia, deployments/laptop"
        recipes.write(f"stripes: [{parts}]\n")
    chosen = ["method.name=inner", "schedule.solver=own", "schedule.score=grown", "schedule.budget=6"]
    overrides = [word for setting in (*chosen, "federation.sites=[north, south]") for word in ("--set", setting)]
    fedpeft = [sys.executable, "-m", "fedpeft.cli"]
    subprocess.run([*fedpeft, "jobs", "stripes", *overrides], check=True, env=environment, cwd=tmp_path)
    run = [*fedpeft, "simulate", "jobs/stripes", "-t", "2", "-w", "ws"]
    subprocess.run(run, check=True, env=environment, cwd=tmp_path)
    results = tmp_path / "ws" / "server" / "simulate_job" / "fedpeft"
    history = json.loads((results / "history.json").read_text())
    assert "inner adapters" in history["method"]
    assert history["procedural"]
    state = load_file(results / "global.safetensors")
    assert {key.split(".", 2)[2] for key in state} == {
        f"attention.{part}" for part in ("down.weight", "down.bias", "up.weight", "up.bias")
    }
    assert (results / "adapter" / "adapter_config.json").is_file()

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Run small jobs in FLARE's simulator, with components of the tests where a test needs them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpeft.jobs import write_job
from fedpeft.workspace import resources

HERE = Path(__file__).parent
SABOTEUR = HERE.parents[1] / "benchmarks"


def simulate(job, workspace, *, threads, environment=()):
    """`fedpeft simulate` as a user types it: exit code, what it printed, and the results folder."""
    command = [sys.executable, "-m", "fedpeft.cli", "simulate", str(job), "-t", str(threads), "-w", str(workspace)]
    path = os.pathsep.join(filter(None, (str(HERE), str(SABOTEUR), os.environ.get("PYTHONPATH"))))
    variables = {**os.environ, "PYTHONPATH": path, **dict(environment)}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    return SimpleNamespace(
        code=done.returncode,
        text=done.stdout + done.stderr,
        error=done.stderr,
        workspace=workspace,
        results=workspace / "server" / "simulate_job" / "fedpeft",
    )


def write(folder, sections, *, frames=None, saboteur=None, mortal=None, peak=None):
    """A job folder, with a recorder, a saboteur, an aggregator that is killed or measured, if wanted."""
    write_job(folder, "small", sections)
    for role in ("server", "client"):
        file = folder / "app" / "config" / f"config_fed_{role}.json"
        config = json.loads(file.read_text())
        if frames:
            component = {"id": "recorder", "path": "recorder.Recorder", "args": {"folder": str(frames)}}
            config["components"].append(component)
        if saboteur and role == "client":
            executor = config["executors"][0]["executor"]
            executor["path"] = "saboteur.Saboteur"
            executor["args"] |= saboteur
        if (mortal or peak) and role == "server":
            (aggregator,) = (c for c in config["components"] if c["id"] == "aggregator")
            aggregator["path"] = "saboteur.MortalAggregator" if mortal else "server_memory.MeasuredAggregator"
            aggregator["args"] |= mortal or {"file": str(peak)}
        file.write_text(json.dumps(config))
    return folder


def workspace_for_tests(folder):
    """A workspace whose allow-list lets the tests' own components in."""
    (folder / "local").mkdir(parents=True)
    allowed = resources()
    allowed["class_allow_list"] += ["recorder.", "saboteur.", "server_memory."]
    (folder / "local" / "resources.json").write_text(json.dumps(allowed))
    return folder


@pytest.fixture(scope="session")
def five_sites(tmp_path_factory, sections):
    """The small job with all five sites, all at once, every frame recorded."""
    folder = tmp_path_factory.mktemp("five")
    frames = folder / "frames"
    frames.mkdir()
    job = write(folder / "job", sections(), frames=frames)
    run = simulate(job, workspace_for_tests(folder / "ws"), threads=5)
    run.frames = frames
    return run


@pytest.fixture(scope="session")
def one_at_a_time(tmp_path_factory, sections):
    """The same job with one thread, where every task is a new process."""
    folder = tmp_path_factory.mktemp("one")
    return simulate(write(folder / "job", sections()), folder / "ws", threads=1)


@pytest.fixture
def sabotaged(tmp_path, sections):
    """Function: run a job of two sites in which vqa-rad does a deed in round 2."""

    def run(deed, *overrides):
        two = sections("federation.sites=[slake, vqa-rad]", *overrides)
        saboteur = {"deed": deed, "culprit": "vqa-rad", "round": 2}
        job = write(tmp_path / "job", two, saboteur=saboteur, peak=tmp_path / "peak")
        done = simulate(job, workspace_for_tests(tmp_path / "ws"), threads=2)
        done.peak = tmp_path / "peak"
        return done

    return run


@pytest.fixture
def filtered(tmp_path, sections):
    """Function: run a job of two sites under a privacy.json."""

    def run(policy, *overrides, threads=2, leak=None):
        two = sections("federation.sites=[slake, vqa-rad]", *overrides)
        frames = tmp_path / "frames"
        frames.mkdir()
        job = write(tmp_path / "job", two, frames=frames)
        if leak:
            file = job / "app" / "config" / "config_fed_client.json"
            config = json.loads(file.read_text())
            executor = config["executors"][0]["executor"]
            executor["path"] = "leaker.Leaker"
            executor["args"] |= leak
            file.write_text(json.dumps(config))
        workspace = workspace_for_tests(tmp_path / "ws")
        (workspace / "local" / "privacy.json").write_text(json.dumps(policy))
        allowed = workspace / "local" / "resources.json"
        listed = json.loads(allowed.read_text())
        listed["class_allow_list"].append("leaker.")
        allowed.write_text(json.dumps(listed))
        done = simulate(job, workspace, threads=threads)
        done.frames = b"".join(file.read_bytes() for file in sorted(frames.glob("*.frames")))
        return done

    return run

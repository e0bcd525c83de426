# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Runs of small jobs in FLARE's simulator that several tests look at."""

import json

import pytest
from simulator_runs import execute, simulate, workspace_for_tests, write

from fedpeft.flare.policy import default_scope

TWO_SITES = "federation.sites=[slake, vqa-rad]"
DEFAULT = ("method.pia.share=agreement", "method.pia.accept=true")


@pytest.fixture(scope="session")
def sections(sections):
    """Of the small job with the default method of the embedded tasks."""
    return lambda *overrides: sections(*DEFAULT, *overrides)


@pytest.fixture(scope="session")
def five_sites(tmp_path_factory, sections):
    """The small job with all five sites, all at once, every frame recorded."""
    folder = tmp_path_factory.mktemp("five")
    frames = folder / "frames"
    frames.mkdir()
    job = write(folder / "job", sections(), frames=frames)
    run = simulate(job, workspace_for_tests(folder / "ws"), threads=5, pictures=True)
    run.frames = frames
    return run


@pytest.fixture(scope="session")
def two_at_once(tmp_path_factory, sections):
    """The small job with two sites, at once."""
    folder = tmp_path_factory.mktemp("two")
    return simulate(write(folder / "job", sections(TWO_SITES)), folder / "ws", threads=2)


@pytest.fixture(scope="session")
def one_at_a_time(tmp_path_factory, small_settings):
    """The same job as a recipe, with one thread, where every task is a new process, and with a privacy.json."""
    root = tmp_path_factory.mktemp("one")
    workspace = workspace_for_tests(root / "fedpia_task1")
    (workspace / "local" / "privacy.json").write_text(json.dumps(default_scope()))
    return execute("FedPIARecipe", "fedpia_task1", [*small_settings, *DEFAULT, TWO_SITES], root, threads=1)


@pytest.fixture
def filtered(tmp_path, sections):
    """Function: run a job of two sites under a privacy.json."""

    def run(policy, *overrides, leak=None):
        two = sections(TWO_SITES, *overrides)
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
        done = simulate(job, workspace, threads=2)
        done.frames = b"".join(file.read_bytes() for file in sorted(frames.glob("*.frames")))
        return done

    return run

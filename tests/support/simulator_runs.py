# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Small jobs in FLARE's simulator, with components of the tests where a test needs them."""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

from undrawn import UNDRAWN
from warm_python import COMMAND

from fedpeft.core.workspace import resources
from fedpeft.job.composing import write_job

ROOT = Path(__file__).parents[2]
COMPONENTS = ROOT / "tests" / "simulator", ROOT / "benchmarks"
RECIPE = """
import json, sys
from nvflare.recipe import SimEnv
from fedpeft.run import recipe as recipes
kind, job, settings, root, threads = json.loads(sys.argv[1])
recipe = getattr(recipes, kind)(job, settings)
run = recipe.execute(SimEnv(clients=recipe.sites, num_threads=threads, workspace_root=root))
print("result:", run.get_result())
"""


def simulate(job, workspace, *, threads, environment=(), pictures=False):
    """`fedpeft simulate` as a user types it: exit code, what it printed, and the results folder.

    Its report has no pictures unless they are wanted. Its processes have their imports already; `test_plugin.py` and
    `test_workspace_in_use.py` start them as users do.
    """
    words = ["-m", "fedpeft.cli", "simulate", str(job), "-t", str(threads), "-w", str(workspace)]
    return _run(words, workspace, environment, pictures=pictures)


def execute(kind, job, settings, root, *, threads):
    """A recipe of a kind, as `FedPIARecipe`, executed with `SimEnv`: what `simulate` returns."""
    words = ["-c", RECIPE, json.dumps([kind, job, settings, str(root), threads])]
    return _run(words, root / job.replace("/", "_"))


def _run(words, workspace, environment=(), *, pictures=False):
    path = os.pathsep.join(filter(None, (*map(str, COMPONENTS), os.environ.get("PYTHONPATH"))))
    variables = {**os.environ, "PYTHONPATH": path, **({} if pictures else {UNDRAWN: "yes"}), **dict(environment)}
    command = [os.environ[COMMAND], *words]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    return SimpleNamespace(
        code=done.returncode,
        text=done.stdout + done.stderr,
        error=done.stderr,
        workspace=workspace,
        results=workspace / "server" / "simulate_job" / "fedpeft",
    )


def write(folder, sections, *, frames=None, faulty_executor=None, crashing=None, peak=None):
    """A job folder, with a recorder, a faulty executor, an aggregator that is killed or measured, if wanted."""
    write_job(folder, "small", sections)
    for role in ("server", "client"):
        file = folder / "app" / "config" / f"config_fed_{role}.json"
        config = json.loads(file.read_text())
        if frames:
            component = {"id": "recorder", "path": "recorder.Recorder", "args": {"folder": str(frames)}}
            config["components"].append(component)
        if faulty_executor and role == "client":
            executor = config["executors"][0]["executor"]
            executor["path"] = "faulty_executor.FaultyExecutor"
            executor["args"] |= faulty_executor
        if (crashing or peak) and role == "server":
            (aggregator,) = (c for c in config["components"] if c["id"] == "aggregator")
            aggregator["path"] = (
                "faulty_executor.CrashingAggregator" if crashing else "server_memory.MeasuredAggregator"
            )
            aggregator["args"] |= crashing or {"file": str(peak)}
        file.write_text(json.dumps(config))
    return folder


def workspace_for_tests(folder):
    """A workspace whose allow-list lets the tests' own components in."""
    (folder / "local").mkdir(parents=True)
    allowed = resources()
    allowed["class_allow_list"] += ["recorder.", "faulty_executor.", "server_memory."]
    (folder / "local" / "resources.json").write_text(json.dumps(allowed))
    return folder


def sabotage(folder, sections, faults, *overrides):
    """Run a job of two sites in which vqa-rad has a fault in some rounds; `peak` is the server's memory."""
    two = sections("federation.sites=[slake, vqa-rad]", f"training.rounds={max(2, *faults)}", *overrides)
    faulty_executor = {"faults": {str(number): fault for number, fault in faults.items()}, "faulty_site": "vqa-rad"}
    job = write(folder / "job", two, faulty_executor=faulty_executor, peak=folder / "peak")
    done = simulate(job, workspace_for_tests(folder / "ws"), threads=2)
    done.peak = folder / "peak"
    return done

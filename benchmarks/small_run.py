# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A small job of three sites in FLARE's simulator, with another executor or aggregator where a benchmark wants one."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measured import JOB, sections
from safetensors.torch import load_file
from torch import Tensor

from fedpeft.core.workspace import KEY, RESOURCES, resources
from fedpeft.job.composing import write_job
from fedpeft.run.simulate import SERVER

SITES = ("slake", "vqa-rad", "vqa-med-2019")
FAULTY_SITE = "vqa-rad"
GRACE = 60  # seconds; a training process that was killed is begun again within it, also on a busy machine
SMALL = (
    f"federation.sites=[{', '.join(SITES)}]",
    "federation.round_timeout=300",
    f"federation.grace={GRACE}",
    "method.probe_samples=8",
    "data.train_size=32",
    "data.validation_size=4",
    "data.test_size=16",
)
Component = tuple[str, Mapping[str, Any]]  # its class and the arguments that it has besides the default ones


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a job ended.

    Args:
        manifest: manifest.json; where there is none, the status "none" and what the command printed.
        rounds: the finished rounds of history.json.
        tensors: the final adapter's file.
        states: the global adapter by round, of the rounds whose checkpoints are kept.
    """

    manifest: dict[str, Any]
    rounds: list[dict[str, Any]]
    tensors: bytes
    states: dict[int, dict[str, Tensor]]


def simulate(
    folder: Path, overrides: Iterable[str], *, executor: Component | None = None, aggregator: Component | None = None
) -> Run:
    """Run the small job in the simulator.

    Args:
        folder: of the workspace; the job of another run in it can be resumed.
        overrides: settings to change.
        executor: of the sites, in place of fedpeft's.
        aggregator: of the server, in place of fedpeft's.

    Raises:
        RuntimeError: exit code and manifest contradict each other.
    """
    workspace = folder / "workspace"
    with tempfile.TemporaryDirectory() as scratch:
        job = Path(scratch) / "job"
        write_job(job, JOB, sections([*SMALL, *overrides]))
        classes = [*_replace(job, "client", executor), *_replace(job, "server", aggregator)]
        (workspace / "local").mkdir(parents=True, exist_ok=True)
        allowed = resources() | {KEY: [*resources()[KEY], *classes]}
        (workspace / "local" / RESOURCES).write_text(json.dumps(allowed))
        command = [sys.executable, "-m", "fedpeft.cli", "simulate", str(job), "-t", str(len(SITES))]
        paths = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
        environment = {name: value for name, value in os.environ.items() if name != "FEDPEFT_STATE"}
        environment["PYTHONPATH"] = paths
        command += ["-w", str(workspace)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    results = workspace / "server" / "simulate_job" / "fedpeft"
    kept = folder.glob(f"workspace_state/{SERVER}/*/round-*/global.safetensors")
    states = {int(file.parent.name.removeprefix("round-")): load_file(file) for file in kept}
    run = read_run(results, failure=done.stderr.strip(), states=states)
    if (done.returncode == 0) != (run.manifest["status"] == "completed"):
        said = f"{done.stdout[-1000:]}{done.stderr[-1000:]}"
        raise RuntimeError(f"exit code {done.returncode}, but {run.manifest}:\n{said}")
    return run


def read_run(results: Path, *, failure: str, states: dict[int, dict[str, Tensor]] | None = None) -> Run:
    """How a job ended, from its folder of results.

    Args:
        results: the folder.
        failure: what is known of a job without a manifest.
        states: see `Run`.
    """
    manifest, history, tensors = (results / name for name in ("manifest.json", "history.json", "global.safetensors"))
    return Run(
        manifest=json.loads(manifest.read_text()) if manifest.exists() else {"status": "none", "reason": failure},
        rounds=json.loads(history.read_text())["rounds"] if history.exists() else [],
        tensors=tensors.read_bytes() if tensors.exists() else b"",
        states=states or {},
    )


def _replace(job: Path, role: str, component: Component | None) -> list[str]:
    """Name another class in a role's configuration; the classes that FLARE must be allowed to load for it."""
    if component is None:
        return []
    file = job / "app" / "config" / f"config_fed_{role}.json"
    config = json.loads(file.read_text())
    candidates = [entry["executor"] for entry in config.get("executors", [])]
    candidates += [entry for entry in config["components"] if entry["id"] == "aggregator"]
    (place,) = candidates
    path, arguments = component
    place["path"] = path
    place["args"] |= arguments
    file.write_text(json.dumps(config))
    return [path]

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Run a job in FLARE's simulator and tell the truth about how it ended.

The simulator's exit code is 0 when a site dies and it may hang for ever; the manifest that the server writes at the
very end is what counts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpeft.errors import FedpeftError
from fedpeft.flare.policy import with_site_filters
from fedpeft.jobs import compose, write_job
from fedpeft.processes import end_all, with_descendants
from fedpeft.workspace import LOG_CONFIG, PRIVACY, seed

RUN = Path("simulate_job") / "fedpeft"
MANIFEST, HISTORY = "manifest.json", "history.json"
DATA, STATE = "FEDPEFT_DATA", "FEDPEFT_STATE"
SECONDS_TO_END = 60


def simulate(job: Path, *, workspace: Path, threads: int, overrides: Sequence[str] = ()) -> Path:
    """Run one job folder to its end.

    Args:
        job: a FLARE job folder.
        workspace: the simulator's folder; everything in it but `local/` and `startup/` is replaced.
        threads: sites that run at the same time.
        overrides: settings as `section.name=value`; the job is then composed anew from `app_configs/`.

    Returns:
        the folder with history, report, adapters and manifest.

    Raises:
        FedpeftError: why the job did not complete; finished rounds are in the workspace.
    """
    if not (job / "meta.json").is_file():
        raise FedpeftError(f"{job} is no FLARE job folder, it has no meta.json: name one of jobs/.")
    results = workspace / "server" / RUN
    with tempfile.TemporaryDirectory() as scratch:
        folder = _recomposed(job, overrides, Path(scratch)) if overrides else job
        folder = with_site_filters(folder, workspace / "local" / PRIVACY, Path(scratch) / "filtered")
        sites = _sites(folder)
        if threads > len(sites):
            raise FedpeftError(f"-t {threads} is more than the {len(sites)} sites of {job}: use at most {len(sites)}.")
        seed(workspace)
        (results / MANIFEST).unlink(missing_ok=True)  # the verdict must not be that of an earlier run
        code = _run_simulator(folder, workspace, threads, results / MANIFEST)
    return _verdict(results, workspace, sites, code)


def _sites(job: Path) -> list[str]:
    try:
        deployed = json.loads((job / "meta.json").read_text())["deploy_map"]
        return [site for sites in deployed.values() for site in sites if site != "server"]
    except (ValueError, KeyError, AttributeError) as error:
        raise FedpeftError(f"{job / 'meta.json'} has no usable deploy_map ({error}): run `fedpeft jobs`.") from error


def _recomposed(job: Path, overrides: Sequence[str], scratch: Path) -> Path:
    for root in job.resolve().parents:
        if (root / "app_configs").is_dir() and (root / "jobs") in job.resolve().parents:
            name = job.resolve().relative_to(root / "jobs").as_posix()
            folder = scratch / job.name
            write_job(folder, name, compose(root / "app_configs", name, overrides))
            return folder
    raise FedpeftError(
        f"--set needs app_configs/ beside jobs/, and {job} lies in no such clone: edit its JSON instead."
    )


def _run_simulator(job: Path, workspace: Path, threads: int, manifest: Path) -> int:
    logging = workspace / "local" / LOG_CONFIG
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(job), "-w", str(workspace), "-l", str(logging)]
    command += ["-t", str(threads)]
    environment = dict(os.environ)
    if DATA in environment:  # the simulator changes its working directory
        environment[DATA] = str(Path(environment[DATA]).resolve())
    state = environment.get(STATE) or workspace.with_name(f"{workspace.name}_state")  # the workspace is wiped
    environment[STATE] = str(Path(state).resolve())
    process = subprocess.Popen(command, start_new_session=True, env=environment)
    ended_at, family = None, {}
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        while process.poll() is None:
            time.sleep(0.2)
            family |= dict.fromkeys(with_descendants(process.pid))  # a killed simulator leaves its sites behind
            if ended_at is None and manifest.exists():
                ended_at = time.monotonic()
            if ended_at is not None and time.monotonic() - ended_at > SECONDS_TO_END:
                break
    finally:
        end_all(family | dict.fromkeys(with_descendants(process.pid)))
        process.wait()
        signal.signal(signal.SIGTERM, previous)
    return process.returncode


def _verdict(results: Path, workspace: Path, sites: Sequence[str], code: int) -> Path:
    manifest = _read(results / MANIFEST)
    if manifest.get("status") == "completed":
        return results
    problems = [_read(workspace / site / RUN / "problem.json") for site in sites]
    told = [f"site {p['site']}: {p['problem']}" for p in problems if p]
    reason = manifest.get("reason") or f"the simulator ended with code {code} and without a manifest"
    rounds = len(_read(results / HISTORY).get("rounds", []))
    lines = [reason, *told, f"Finished rounds: {rounds}; logs and results are in {workspace}."]
    if rounds:
        lines.append("Go on where it stopped: the same command with --set resume_from=latest.")
    raise FedpeftError("\n".join(lines))


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.is_file() else {}

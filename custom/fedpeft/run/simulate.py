# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Run a job in FLARE's simulator and report correctly how it ended.

The simulator's exit code is 0 even if a site dies, and it may hang forever; only the manifest counts, which the server
writes last. It also deletes a workspace when the next run starts, so earlier runs are moved out before.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import MAX_HISTORY, read_json, write_json
from fedpeft.core.locks import SERVER, held, kept_folder, runs_folder
from fedpeft.core.processes import family, python_environment, socket_folder
from fedpeft.core.workspace import (
    DATA_VARIABLE,
    HISTORY,
    LOG_CONFIG,
    MANIFEST,
    OF_SIMULATOR,
    PRIVACY,
    PROBLEM,
    STATE_VARIABLE,
    check_place,
    chosen_state,
    listed_classes,
    seed,
)
from fedpeft.flare.policy import add_site_filters
from fedpeft.job.admission import CONFIGURATIONS, MAX_SITES, admit_folder
from fedpeft.job.folder import check_sites, job_folder
from fedpeft.report.status import CUT_OFF, FAILED, SIMULATED

STAYS = ("local", "startup")  # what FLARE does not delete


def set_aside(workspace: Path) -> Path | None:
    """Move the run in a workspace to `<workspace>_runs/<when it last wrote>-<job>`, in the workspace's own layout.

    Returns:
        the run's new folder; None if the workspace held no run.

    Raises:
        FedpeftError: it cannot be moved.
    """
    written = [file for name in (MANIFEST, HISTORY) if (file := workspace / SIMULATED / name).is_file()]
    if not written:
        return None
    when = time.strftime("%Y%m%d-%H%M%S", time.localtime(max(file.stat().st_mtime for file in written)))
    folder = _unused(runs_folder(workspace) / f"{when}-{_job_of(written[0])}")
    try:
        if MANIFEST not in [file.name for file in written]:
            write_json(workspace / SIMULATED / MANIFEST, _manifest_of_cut_off_run(written[0]))
        folder.mkdir(parents=True)
        for entry in sorted(workspace.iterdir(), key=lambda path: path.name == SIMULATED.parts[0]):  # the results last
            if entry.name not in STAYS:
                entry.rename(folder / entry.name)
    except OSError as error:
        raise FedpeftError(
            f"the run in {workspace} cannot be moved to {folder} ({error.strerror}): move it elsewhere, or name "
            f"another folder with -w."
        ) from error
    return folder


def _manifest_of_cut_off_run(history: Path) -> dict[str, Any]:
    """Return a manifest for a run that ended without writing one."""
    record = _read_object(history)
    rounds = record.get("rounds")
    return {
        "job": record.get("job", ""),
        "status": FAILED,
        "reason": CUT_OFF,
        "rounds": len(rounds) if isinstance(rounds, list) else 0,
        "files": {},
    }


def _job_of(file: Path) -> str:
    name = str(_read_object(file).get("job", "")).lower()
    return re.sub(r"[^a-z0-9_]+", "-", name).strip("-")[:60] or "job"


def _unused(folder: Path) -> Path:
    number = 1
    while (free := folder if number == 1 else folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return free


SIMULATOR = "nvflare.private.fed.app.simulator.simulator"
SECONDS_TO_END = 60
FLARE, POOL = "flare", "pool"
MANY_SITES = 20
INSTEAD = "--engine pool lets them take turns in a few processes, with the same results."
ROOM = 10**7  # with fewer free bytes a disk counts as full


def simulate(job: Path, *, workspace: Path, threads: int, overrides: Sequence[str] = (), engine: str = FLARE) -> Path:
    """Run one job folder to its end.

    Args:
        job: a FLARE job folder, or the name of a job of `app_configs/`, here or in the package.
        workspace: the simulator's folder; an earlier run in it is moved to `<workspace>_runs/`.
        threads: sites that run at the same time; fewer if they train on a GPU without room for this many.
        overrides: settings as `section.name=value`; the job is then composed again from `app_configs/`.
        engine: `flare`, the simulator; or `pool`, where the sites take turns in as many processes as `threads` and
            share one backbone in each. Both give the same bytes.

    Returns:
        the folder with history, report, adapters and manifest.

    Raises:
        FedpeftError: the job did not start (the workspace is then unchanged) or did not complete (finished rounds are
            then in the workspace).
    """
    workspace = workspace.resolve()
    results = workspace / "server" / OF_SIMULATOR
    with tempfile.TemporaryDirectory() as scratch:
        folder = job_folder(job, overrides, Path(scratch))
        admitted = admit_folder(folder, classes=listed_classes(workspace))
        folder = add_site_filters(folder, workspace / "local" / PRIVACY, Path(scratch) / "filtered")
        sites = admitted.sites
        if taken := {SERVER, *STAYS} & set(sites):
            raise FedpeftError(
                f"federation.sites names {min(taken)!r}, which is a folder of every workspace: give the site another "
                f"name here."
            )
        if threads > len(sites):
            raise FedpeftError(f"-t {threads} is more than the {len(sites)} sites of {job}: use at most {len(sites)}.")
        check_place(workspace, job)
        check_sites(admitted.site_sections, sites)
        pooled = _pooled(folder) if engine == POOL else None
        if engine == FLARE and len(sites) >= MANY_SITES:
            print(
                f"slow     FLARE starts a process for each of {len(sites)} sites in every round; {INSTEAD}", flush=True
            )
        if threads > 1:
            threads = _sites_that_fit(folder, workspace, threads)
        with held(workspace) as lock:
            _check_resume(folder, _kept_state_folder(workspace) / SERVER)
            seed(workspace)
            if earlier := set_aside(workspace):
                print(f"earlier  {earlier}", flush=True)
            if pooled:
                _run_pool(pooled, folder, sites, workspace, threads)
                return _verdict(results, workspace, sites, 0)
            code = _run_simulator(folder, workspace, threads, results / MANIFEST, lock)
            return _verdict(results, workspace, sites, code)


def _pooled(job: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    from fedpeft.run.pool import sections_of  # imports torch

    return sections_of(job)


def _run_pool(
    job: tuple[str, Mapping[str, Any], Mapping[str, Any]],
    folder: Path,
    sites: Sequence[str],
    workspace: Path,
    processes: int,
) -> None:
    """Run a job in a pool of processes; its manifest says how it ended.

    The sites' configuration is put where FLARE leaves it: a comparison reads the backbone there.
    """
    from fedpeft.run.pool import run_pool

    name, server, of_sites = job
    for participant in {"server", *sites}:  # leftovers of a run that ended before its first round
        shutil.rmtree(workspace / participant, ignore_errors=True)
    beside = workspace / SIMULATED.parent / "app_server" / CONFIGURATIONS["client"]
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_bytes((folder / "app" / CONFIGURATIONS["client"]).read_bytes())
    with contextlib.suppress(FedpeftError), _ended_by_signal():
        run_pool(
            name,
            server,
            of_sites,
            sites=sites,
            workspace=workspace,
            state=_kept_state_folder(workspace),
            processes=processes,
        )


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Let SIGTERM end this block as Ctrl-C does, so that its processes end with it; only a main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _sites_that_fit(job: Path, workspace: Path, threads: int) -> int:
    """Return how many sites may run at once, as far as they train on a GPU and its memory limits that."""
    from fedpeft.doctor.memory import sites_at_once

    count, sentence = sites_at_once(job, threads, workspace=workspace)
    if count < threads:
        print(f"at once  {count} of {threads} sites; {sentence}", flush=True)
    return count


def _check_resume(job: Path, lineages: Path) -> None:
    """Refuse what cannot be resumed, as the server would, before the earlier run is moved."""
    arguments = _controller_arguments(job / "app" / "config" / "config_fed_server.json")
    if not (arguments.get("federation") or {}).get("resume_from"):
        return
    from fedpeft.job.settings import ServerJob
    from fedpeft.server.checkpoint import lasting_settings, load_to_resume

    settings = ServerJob.from_sections(arguments)
    load_to_resume(
        lineages,
        settings.federation.resume_from,
        job=arguments.get("job", ""),
        submitter="",
        settings=lasting_settings(settings.method, settings.training, settings.schedule),
    )


def _controller_arguments(file: Path) -> Mapping[str, Any]:
    try:
        workflows = read_json(file)["workflows"]
        return next(one["args"] for one in workflows if "federation" in one["args"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise FedpeftError(
            f"{file} is not a configuration of fedpeft's server ({error!r:.80}): run `fedpeft jobs`."
        ) from error


def _kept_state_folder(workspace: Path) -> Path:
    """Return the folder for state that outlives a run; FLARE deletes the workspace."""
    return (chosen_state() or kept_folder(workspace)).resolve()


def _run_simulator(job: Path, workspace: Path, threads: int, manifest: Path, lock: int) -> int:
    logging = workspace / "local" / LOG_CONFIG
    # as FLARE's SimEnv starts it; the command `nvflare simulator` prints that it is deprecated
    command = [sys.executable, "-m", SIMULATOR, str(job), "-w", str(workspace), "-l", str(logging)]
    command += ["-t", str(threads), "-m", str(MAX_SITES)]
    environment = {**python_environment(), STATE_VARIABLE: str(_kept_state_folder(workspace))}
    if DATA_VARIABLE in environment:  # the simulator changes its working directory
        environment[DATA_VARIABLE] = str(Path(environment[DATA_VARIABLE]).resolve())
    ended_at = None
    with (
        _ended_by_signal(),
        socket_folder() as temporary,
        family(holding=[lock], removing=[*temporary.values()]) as mark,
    ):
        process = subprocess.Popen(command, start_new_session=True, env=environment | temporary | mark)
        while process.poll() is None:
            time.sleep(0.2)
            if ended_at is None and manifest.exists():
                ended_at = time.monotonic()
            if ended_at is not None and time.monotonic() - ended_at > SECONDS_TO_END:
                break
    return process.wait()


def _verdict(results: Path, workspace: Path, sites: Sequence[str], code: int) -> Path:
    manifest = _read_object(results / MANIFEST)
    if manifest.get("status") == "completed":
        return results
    problems = [_read_object(workspace / site / OF_SIMULATOR / PROBLEM) for site in sites]
    site_problems = [f"site {p['site']}: {p['problem']}" for p in problems if {"site", "problem"} <= p.keys()]
    reason = manifest.get("reason") or f"the simulator ended with code {code} and without a manifest"
    done = _read_object(results / HISTORY).get("rounds")
    rounds = manifest.get("rounds", len(done) if isinstance(done, list) else 0)
    lines = [reason, *site_problems, f"Finished rounds: {rounds}; logs and results are in {workspace}."]
    if not manifest and shutil.disk_usage(workspace).free < ROOM:
        lines.append(f"The disk of {workspace} is full: make room.")
    if rounds:
        lines.append("Go on where it stopped: the same command with --set resume_from=latest.")
    raise FedpeftError("\n".join(lines))


def _read_object(file: Path) -> dict[str, Any]:
    """Return a JSON object that a process of a run wrote; empty if there is none."""
    try:
        content = read_json(file, max_bytes=MAX_HISTORY)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}

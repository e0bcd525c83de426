# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A server and three sites over mutual TLS on this machine, for faults that need FLARE's own processes."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import psutil
import yaml
from measured import JOB, ROOT, sections
from nvflare.fuel.flare_api.api_spec import NoConnection
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from small_run import FAULTY_SITE, SITES, SMALL, Run, read_run

from fedpeft.core.processes import end
from fedpeft.job.composing import write_job
from fedpeft.report.status import run_folder

LEAD = "lead@coordinator.org"
WORKER = "nvflare.private.fed.app.client.worker_process"
SECONDS = 600
EXITING = "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: os._exit(1))\n"


def in_a_consortium(
    folder: Path, overrides: Sequence[str], break_down: Callable[[Callable[[], list[psutil.Process]]], None]
) -> Run:
    """Run the small job in a consortium; after its first round a site's process of the job breaks down.

    Args:
        folder: of the start-up kits and all that they write.
        overrides: settings to change.
        break_down: takes a function that gives the faulty site's process of the job, in a list that is empty between
            two of them.
    """
    with _started(folder) as kits, tempfile.TemporaryDirectory() as scratch:
        with redirect_stdout(sys.stderr):  # FLARE prints a line when it connects
            lead = new_secure_session(LEAD, str(kits / LEAD), timeout=60)
        _wait_until(lambda: _connected(lead) == set(SITES))
        write_job(Path(scratch) / JOB, JOB, sections([*SMALL, *overrides]))
        job = lead.submit_job(str(Path(scratch) / JOB))
        _wait_until(lambda: list((kits / "server" / "fedpeft").glob(f"{JOB}-*/round-*")))
        break_down(lambda: _processes(kits / FAULTY_SITE, WORKER))
        lead.wait_for_job(job, timeout=SECONDS, poll_interval=0.3)
        downloaded = Path(lead.download_job_result(job, scratch))
        lead.close()
        return read_run(run_folder(downloaded), failure="no manifest")


def end_by(signal: int) -> Callable[[Callable[[], list[psutil.Process]]], None]:
    """Send the process one signal; SIGUSR1 has it exit with code 1."""

    def break_down(current: Callable[[], list[psutil.Process]]) -> None:
        (process,) = _wait_until(current)
        process.send_signal(signal)

    return break_down


def kill_again_and_again(times: int) -> Callable[[Callable[[], list[psutil.Process]]], None]:
    """Kill the process and those that are started in its place."""

    def break_down(current: Callable[[], list[psutil.Process]]) -> None:
        killed: set[int] = set()
        while len(killed) < times:
            (process,) = _wait_until(lambda: [one for one in current() if one.pid not in killed])
            killed.add(process.pid)
            process.kill()

    return break_down


@contextmanager
def _started(folder: Path) -> Iterator[Path]:
    kits = _provision(folder)
    (folder / "sitecustomize.py").write_text(EXITING)
    try:
        for name in ("server", *SITES):
            paths = [str(folder)] * (name == FAULTY_SITE) + [os.environ.get("PYTHONPATH", "")]
            commands = [str(Path(sys.executable).parent), os.environ["PATH"]]
            environment = {
                **os.environ,
                "PATH": os.pathsep.join(commands),
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            }
            with (kits / name / "console.txt").open("w") as console:
                script = kits / name / "startup" / "start.sh"
                subprocess.run([script], check=True, stdout=console, stderr=console, env=environment)
        yield kits
    finally:
        end(int(file.read_text()) for name in ("server", *SITES) for file in (kits / name).glob("*pid.fl"))


def _provision(folder: Path) -> Path:
    described = yaml.safe_load((ROOT / "provisioning" / "project.yml").read_text())
    described["participants"] = [
        one for one in described["participants"] if one["type"] != "client" or one["name"] in SITES
    ]
    server = next(one for one in described["participants"] if one["type"] == "server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server["fed_learn_port"] = probe.getsockname()[1]
    least = dict.fromkeys(("min_train_samples", "min_train_images", "min_test_samples", "min_score_samples"), 4)
    for builder in described["builders"]:
        if "storage" in builder.get("args", {}):
            builder["args"] |= {"storage": str(folder / "storage"), "site_policy": least}
    (folder / "project.yml").write_text(yaml.safe_dump(described))
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-w", str(folder), "-p", str(folder / "project.yml")]
    environment = {**os.environ, "HOME": str(folder)}
    subprocess.run(command, check=True, capture_output=True, env=environment, stdin=subprocess.DEVNULL)
    kits = folder / "fedpeft" / "prod_00"
    file = kits / "server" / "local" / "resources.json.default"
    settings = json.loads(file.read_text())
    next(one for one in settings["components"] if one["id"] == "returning_sites")["args"]["patience"] = 5
    file.write_text(json.dumps(settings))
    return kits


def _connected(lead: Session) -> set[str]:
    try:
        return {client.name for client in lead.get_connected_client_list()}
    except NoConnection:
        return set()


def _processes(kit: Path, module: str) -> list[psutil.Process]:
    started = [(one, one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
    return [one for one, command in started if module in command and str(kit) in " ".join(command)]


def _wait_until(what: Callable):
    deadline = time.monotonic() + SECONDS
    while not (answer := what()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {SECONDS} s: {what}")
        time.sleep(0.3)
    return answer

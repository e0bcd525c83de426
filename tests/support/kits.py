# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Start-up kits of the committed project with two of its sites, and the processes that run from them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import psutil
import yaml
from nvflare.app_common.streamers.file_streamer import FileStreamer
from nvflare.fuel.flare_api.api_spec import NoConnection
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from undrawn import UNDRAWN
from warm_python import COMMAND

from fedpeft.core.processes import end

ROOT = Path(__file__).parents[2]
PATIENT = partial(FileStreamer.stream_file, chunk_timeout=60.0)
SITES = ("slake", "vqa-rad")
ABSENT = "vqa-med-2019"
LEAD, ADMIN, MEMBER = "lead@coordinator.org", "project-admin@coordinator.org", "member@hospital-a.org"
SECRET = "hospital-database-password"
SCRATCH = tempfile.TemporaryDirectory(prefix="consortium-")
TRUE_ENVIRONMENT = {  # where each process is a Python of its own
    **os.environ,
    "TMPDIR": SCRATCH.name,  # of these tests alone, which look at what a server leaves there
    "DB_PASSWORD": SECRET,  # of server and sites alike; nothing of it may reach anybody
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "OMP_NUM_THREADS": "1",
    # with a home of its own matplotlib would look for the machine's fonts first
    "MPLCONFIGDIR": matplotlib.get_cachedir(),
}
# where python3, nvflare and fedpeft have their imports already
WARM = Path(os.environ[COMMAND]).parent
ENVIRONMENT = {**TRUE_ENVIRONMENT, UNDRAWN: "yes", "PATH": os.pathsep.join([str(WARM), TRUE_ENVIRONMENT["PATH"]])}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def project(
    file: Path,
    *,
    port: int,
    sites: Sequence[str] = SITES,
    policy: Mapping[str, Any] | None = None,
    relays: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """The committed project.yml, but for port, storage, sites, what their site policies allow, and relays."""
    described = yaml.safe_load((ROOT / "provisioning" / "project.yml").read_text())
    described["participants"] = [p for p in described["participants"] if p["type"] != "client" or p["name"] in sites]
    next(p for p in described["participants"] if p["type"] == "server")["fed_learn_port"] = port
    for relay, behind in (relays or {}).items():
        listening = {"default_host": "localhost", "host_names": ["localhost"], "port": free_port()}
        described["participants"].append({"name": relay, "type": "relay", "org": "region", "listening_host": listening})
        for site in described["participants"]:
            if site["name"] in behind:
                site["connect_to"] = {"name": relay}
    for builder in described["builders"]:
        if "storage" in builder.get("args", {}):
            builder["args"] |= {"storage": str(file.parent / "storage"), "site_policy": dict(policy or {})}
    file.write_text(yaml.safe_dump(described))
    return file


def provision(
    folder: Path,
    *,
    port: int,
    sites: Sequence[str] = SITES,
    policy: Mapping[str, Any] | None = None,
    patience: float | None = None,
    relays: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """The folder with one start-up kit per participant; a certificate authority of its own for every call.

    Args:
        folder: where the kits are made.
        port: of the server.
        sites: those that get a kit.
        policy: what the site policies say.
        patience: seconds that a finished job waits for the end of its part at a lost site, instead of half a minute.
        relays: by relay, the sites behind it.
    """
    command = [WARM / "nvflare", "provision", "-w", str(folder)]
    file = project(folder / "project.yml", port=port, sites=sites, policy=policy, relays=relays)
    command += ["-p", str(file)]
    environment = {**ENVIRONMENT, "HOME": str(folder)}
    subprocess.run(command, check=True, capture_output=True, env=environment, stdin=subprocess.DEVNULL)
    for script in folder.glob("fedpeft/prod_00/*/startup/sub_start.sh"):  # waits before it starts a participant
        script.write_text(script.read_text().replace("sleep 5", "sleep 1"))
    kits = folder / "fedpeft" / "prod_00"
    if patience is not None:
        file = kits / "server" / "local" / "resources.json.default"
        settings = json.loads(file.read_text())
        (returning,) = (one for one in settings["components"] if one["id"] == "returning_sites")
        returning["args"]["patience"] = patience
        file.write_text(json.dumps(settings))
    return kits


@contextmanager
def started(*kits: Path, true: Sequence[str] = ()) -> Iterator[None]:
    """The participants of these kits, started as their readme says, and ended whatever happens.

    Args:
        kits: their folders.
        true: those of them whose processes are Pythons of their own.
    """
    try:
        for kit in kits:
            start(kit, true=kit.name in true)
        yield
    finally:
        end(int(file.read_text()) for kit in kits for file in kit.glob("*pid.fl"))


def start(kit: Path, *, true: bool = False, **more: str) -> None:
    """Start a participant as its readme says, with more variables in its environment."""
    environment = (TRUE_ENVIRONMENT if true else ENVIRONMENT) | more
    with (kit / "console.txt").open("w") as console:
        script = kit / "startup" / "start.sh"
        for name in ("random", "types", "statistics"):  # no script in the current folder may be imported
            (kit.parent / f"{name}.py").write_text("raise RuntimeError('a script of the user ran')\n")
        subprocess.run([script], check=True, stdout=console, stderr=console, env=environment, cwd=kit.parent)


def connected(federation) -> set[str]:
    """Names of the sites that the server knows; none while a server that has just started answers nothing."""
    try:
        return {client.name for client in federation.lead.get_connected_client_list()}
    except NoConnection:
        return set()


def session(kit: Path, *, seconds: float = 60) -> Session:
    """FLARE gives a server five seconds for an answer and for the check of a job's part; tests give it more."""
    FileStreamer.stream_file = staticmethod(PATIENT)
    opened = new_secure_session(kit.name, str(kit), timeout=seconds)
    opened.set_timeout(60)
    return opened


def wait_until(what, *, seconds: float = 600):
    """Wait for a true answer and return it."""
    deadline = time.monotonic() + seconds
    while not (answer := what()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.3)
    return answer


def processes_below(folder: Path) -> list[psutil.Process]:
    """Processes that were started with a path in this folder."""
    return [p for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or [])]

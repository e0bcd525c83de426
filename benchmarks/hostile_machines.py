# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A consortium over mutual TLS where another user, the memory, the clock, a kit or a second server is wrong.

To become another user needs root: without it these rows say so.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from measured import python
from running_consortium import GOOD, HOSTILE, Consortium, Row, comes, kits, outcome, running_consortium

NOBODY = 65534
LEARNER = 3 * 10**8  # bytes of a training process that has its learner
NOT_TRIED = "not tried on this machine"
CLOCK = """import time
seconds, nanoseconds = time.time, time.time_ns
time.time, time.time_ns = lambda: seconds() + {seconds}, lambda: nanoseconds() + {seconds} * 10**9
"""
CLIENT, SERVER = (f"nvflare.private.fed.app.{one}" for one in ("client.client_train", "server.server_train"))
DAY = datetime.timedelta(days=1)


def rows() -> Iterator[Row]:
    """All of it, on one consortium."""
    with running_consortium() as consortium:
        for part in PARTS:
            yield from part(consortium)


def as_nobody(what: Callable[[], str]) -> str:
    """What a function returns in a process of another user of this machine."""
    if os.geteuid() != 0:
        return NOT_TRIED
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            said = what()
        except OSError as error:
            said = str(error.strerror)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def _others(consortium: Consortium) -> Iterator[Row]:
    """Another user of the same machine."""
    yield outcome("nothing, for comparison", consortium.ended(consortium.submit()))
    for name in (GOOD, "server"):
        ports = {
            found.laddr.port
            for process in kits.processes_below(consortium.kits / name)
            for found in process.net_connections("tcp")
            if found.status == psutil.CONN_LISTEN and found.laddr.ip == "127.0.0.1"
        }
        said = as_nobody(lambda ports=ports: ", ".join(_knock(port) for port in ports) or "no port is open")
        lost = "nothing" if "open" not in said.replace("no port is open", "") else "orders to its processes"
        yield f"another user connects to the local port of a {'site' if name == GOOD else name}'s process", said, lost
    for name, folders in {
        "what jobs keep": [*consortium.kits.glob("*/fedpeft"), consortium.folder / "storage"],
        "the folders of jobs, with their logs": consortium.kits.glob("*/????????-????-*"),
        "keys and own files": [*consortium.kits.glob("*/startup"), *consortium.kits.glob("*/local")],
        "temporary files": [Path(kits.SCRATCH.name)],
    }.items():
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        said = as_nobody(lambda files=files: ", ".join(sorted({path.name for path in files if _can_read(path)})))
        what = said if said == NOT_TRIED else f"of {len(files)} files these can be read: {said or 'none'}"
        yield f"another user reads {name} of server and sites", what[:400], "what is in them" if said else "nothing"


def _can_read(file: Path) -> bool:
    return os.access(file, os.R_OK)


def _knock(port: int) -> str:
    """Whether the other end closes a connection; FLARE's own would wait for a message."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.settimeout(10)
        try:
            return "the connection is closed" if connection.recv(1) == b"" else "an answer, it stays open"
        except TimeoutError:
            return "the connection stays open"


def _trainers(consortium: Consortium) -> list[psutil.Process]:
    """The site's training processes that have done their imports."""
    found = []
    for process in kits.processes_below(consortium.kits / HOSTILE):
        with contextlib.suppress(psutil.Error):
            found += [one for one in process.children() if "fedpeft.site.training_process" in one.cmdline()]
    with contextlib.suppress(psutil.Error):
        return [one for one in found if one.memory_info().rss > LEARNER]
    return []


def _memory(consortium: Consortium) -> Iterator[Row]:
    """A training process gets the signal that the kernel sends where memory ends, or is refused more memory."""
    for times in (1, 2):
        job, seen = consortium.submit(), set()
        while len(seen) < times:
            (process,) = kits.wait_until(lambda: [one for one in _trainers(consortium) if one.pid not in seen])  # noqa: B023
            seen.add(process.pid)
            process.kill()
        name = f"SIGKILL to a site's training process, as the kernel's where memory ends, {times} times"
        yield outcome(name, consortium.ended(job))
    job, limited = consortium.submit("training.local_epochs=2"), set()
    while consortium.lead.get_job_meta(job)["status"].partition(":")[0] != "FINISHED":
        for process in _trainers(consortium):
            with contextlib.suppress(psutil.Error):
                if process.pid not in limited:
                    process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms,) * 2)
                    limited.add(process.pid)
        time.sleep(0.1)
    yield outcome(
        f"the kernel refuses more memory to a site's training (RLIMIT_AS, {len(limited)} processes)",
        consortium.ended(job),
    )


def _copy(kit: Path, folder: Path) -> Path:
    for part in ("startup", "local"):
        shutil.copytree(kit / part, folder / kit.name / part)
    return folder / kit.name


def _running(kit: Path, module: str) -> int:
    """How many processes of a kit run a module of FLARE."""
    return sum(module in process.info["cmdline"] for process in kits.processes_below(kit))


def _twice(consortium: Consortium) -> Iterator[Row]:
    """The kit of a site started again, and copied to another machine."""
    kit = consortium.kits / HOSTILE
    consortium.start(kit)
    running = _running(kit, CLIENT)
    what = (kit / "console.txt").read_text().splitlines()
    said = next((line for line in reversed(what) if "instance" in line), "nothing").partition(", pid")[0]
    lost = "nothing" if running == 1 else f"{running} processes work as this site"
    yield "start.sh of a site's kit a second time", f"it says: {said}; {running} process runs", lost
    copied = _copy(kit, consortium.folder / "copied-site")
    job = consortium.running("training.rounds=8")
    consortium.restart(copied)
    yield outcome("the same kit started on a second machine while a job runs", consortium.ended(job))
    yield outcome("a job while both run", consortium.ended(consortium.submit()))
    consortium.stop(copied)
    again = "it is connected; " if consortium.restart(kit) else "it does not connect; "
    yield outcome("the second stopped, the first started again", consortium.ended(consortium.submit()), before=again)


def _connecting(consortium: Consortium, name: str, kit: Path, **environment: str) -> Row:
    """A job after a site has tried to connect, or why it does not."""
    if consortium.restart(kit, **environment):
        return outcome(name, consortium.ended(consortium.submit()), before="it connects; ")
    values = {**kits.TRUE_ENVIRONMENT, **environment}
    command = python("-m", "fedpeft.cli", "doctor", "--startup-kit", str(kit))
    said = subprocess.run(command, capture_output=True, text=True, check=False, env=values).stdout
    why = re.findall(r"fail (?:clock|ports) (.*?)(?= (?:pass|warn|fail) |$)", " ".join(said.split()))
    return name, f"it does not connect; fedpeft doctor says there: {' '.join(why)}", "that site, no other"


def _clocks(consortium: Consortium) -> Iterator[Row]:
    """A site whose clock is off, as its Python reads it; TLS reads the machine's."""
    kit, folder = consortium.kits / HOSTILE, consortium.folder / "clock"
    folder.mkdir()
    for days, name in {1: "a day ahead", -1: "a day behind"}.items():
        (folder / "sitecustomize.py").write_text(CLOCK.format(seconds=days * 86400))
        paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        yield _connecting(consortium, f"a site's time.time() is {name}", kit, PYTHONPATH=paths)
    consortium.restart(kit)


def _certificates(consortium: Consortium) -> Iterator[Row]:
    """A site whose certificate of the consortium's authority is not valid today."""
    kit, now = consortium.kits / HOSTILE, datetime.datetime.now(datetime.UTC)
    file = kit / "startup" / "client.crt"
    own = file.read_bytes()
    for name, begins, ends in (
        ("begins tomorrow", now + DAY, now + 2 * DAY),
        ("ended yesterday", now - 9 * DAY, now - DAY),
    ):
        file.write_bytes(_signed(consortium, own, begins, ends))
        yield _connecting(consortium, f"a site's certificate {name}", kit)
    file.write_bytes(own)
    consortium.restart(kit)


def _signed(consortium: Consortium, certificate: bytes, begins: datetime.datetime, ends: datetime.datetime) -> bytes:
    """The same certificate of other days."""
    state = json.loads((consortium.folder / "fedpeft" / "state" / "cert.json").read_text())
    key = serialization.load_pem_private_key(state["root_pri_key"].encode(), None)
    old = x509.load_pem_x509_certificates(certificate)[0]
    builder = x509.CertificateBuilder(
        old.issuer, old.subject, old.public_key(), x509.random_serial_number(), begins, ends
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _two_servers(consortium: Consortium) -> Iterator[Row]:
    """Two servers: in one project, from one kit, and one of another consortium."""
    project = yaml.safe_load((consortium.folder / "project.yml").read_text())
    (server,) = (one for one in project["participants"] if one["type"] == "server")
    project["participants"].append({**server, "name": "second"})
    (consortium.folder / "two.yml").write_text(yaml.safe_dump(project))
    command = python("-m", "nvflare.cli", "provision", "-w", str(consortium.folder / "two"))
    done = subprocess.run(
        [*command, "-p", str(consortium.folder / "two.yml")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": str(consortium.folder)},
        stdin=subprocess.DEVNULL,
    )
    said = [line for line in (done.stderr + done.stdout).splitlines() if "exists" in line] or ["no reason"]
    yield (
        "two servers in one project.yml",
        f"nvflare provision ends with {done.returncode}: {said[-1].strip()}",
        "nothing",
    )
    job = consortium.running("training.rounds=20")
    copied = _copy(consortium.kits / "server", consortium.folder / "copied-server")
    consortium.start(copied)
    comes(lambda: "another server works" in (copied / "console.txt").read_text())
    said = re.findall("another server works[^\n]*", (copied / "console.txt").read_text()) or ["nothing"]
    meanwhile = consortium.lead.get_job_meta(job)["status"]
    yield outcome(
        "a copy of the server's kit, with the same store, started beside it while a job runs",
        consortium.ended(job),
        before=f"the copy says: {said[0]} FLARE says {meanwhile} of the job; ",
    )
    consortium.stop(copied)
    second = Consortium(consortium.folder.parent / "second")
    foreign = second.kits / HOSTILE
    config = foreign / "startup" / "fed_client.json"
    config.write_text(config.read_text().replace(str(second.port), str(consortium.port)))
    connects = second.restart(foreign)
    said = "it connects" if connects else "it does not connect"
    yield "a site's kit of another consortium, pointed at this server", said, "a site's part" if connects else "nothing"
    second.stop()


PARTS = (_others, _memory, _twice, _clocks, _certificates, _two_servers)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A consortium over mutual TLS where a user, clock, kit, site or server of one of its machines is hostile or wrong.

One server and two sites from start-up kits, each process a Python of its own, and one small job after the other. To
become another user needs root, another clock the Debian package `faketime`: without them these rows say so.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lying_processes
import psutil
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from measured import ROOT, python, sections
from nvflare.fuel.flare_api.api_spec import NoConnection

sys.path.insert(0, str(ROOT / "tests" / "support"))
from warm_python import COMMAND

os.environ.setdefault(COMMAND, sys.executable)  # no process has its imports already

import kits

from fedpeft.jobs import write_job
from fedpeft.processes import end
from fedpeft.status import run_folder

GOOD, HOSTILE = kits.SITES
POLICY = dict.fromkeys(("least_train_samples", "least_train_images", "least_test_samples", "least_score_samples"), 4)
SMALL = (
    f"federation.sites=[{GOOD}, {HOSTILE}]",
    "federation.quorum=1",
    "federation.hello_timeout=60",
    "federation.grace=10",
    "method.aggregation=fedavg",
    "data.train_size=32",
    "data.validation_size=4",
    "data.test_size=16",
)
NOBODY = 65534
NOT_TRIED = "not tried on this machine"
CLOCK = "usr/lib/*/faketime/libfaketimeMT.so.1"
CLIENT, SERVER = (f"nvflare.private.fed.app.{one}" for one in ("client.client_train", "server.server_train"))
DAY = datetime.timedelta(days=1)
SECONDS = 90.0
Row = tuple[str, str, str]


class Consortium:
    """A server and two sites with start-up kits in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.port, self.used = folder, kits.free_port(), set()
        self.kits = kits.provision(folder, port=self.port, policy=POLICY, patience=5)

    def start(self, *folders: Path, **environment: str) -> None:
        """Start participants, and the lead's session once the server answers."""
        for kit in folders:
            self.used.add(kit)
            with (kit / "console.txt").open("a") as console:
                command, values = kit / "startup" / "start.sh", {**kits.TRUE_ENVIRONMENT, **environment}
                subprocess.run([command], check=True, stdout=console, stderr=console, env=values, cwd=kit.parent)
            if kit == self.kits / "server":
                self.lead = kits.session(self.kits / kits.LEAD, seconds=300)

    def stop(self, *folders: Path) -> None:
        """End participants, by default all."""
        for kit in folders or tuple(self.used):
            end(int(file.read_text()) for file in kit.glob("*pid.fl"))
            for file in kit.glob("*pid.fl"):
                file.unlink()
            if kit == self.kits / "server":
                self.lead.close()

    def restart(self, kit: Path, **environment: str) -> bool:
        """Start a site again; whether it registers."""
        self.stop(kit)
        (kit / "console.txt").unlink(missing_ok=True)
        self.start(kit, **environment)
        return _comes(lambda: "Successfully registered" in (kit / "console.txt").read_text())

    def submit(self, *overrides: str, change: Callable[[Path], Any] = str) -> str:
        """Submit the small job."""
        folder = self.folder / secrets.token_hex(4)
        write_job(folder, "small", sections([*SMALL, "training.rounds=2", *overrides]))
        change(folder)
        known = {one["job_id"] for one in self.lead.list_jobs()}
        try:
            return self.lead.submit_job(str(folder))
        except NoConnection:  # FLARE waits five seconds for an answer, which a busy machine may not keep
            self.lead = kits.session(self.kits / kits.LEAD, seconds=300)
            (job,) = kits.wait_until(lambda: {one["job_id"] for one in self.lead.list_jobs()} - known)
            return job

    def running(self, *overrides: str) -> str:
        """Submit a job; return its id once it has finished its first round."""
        states, before = self.kits / "server" / "fedpeft", set(self.lineages("server"))
        job = self.submit(*overrides)
        kits.wait_until(
            lambda: [new for new in set(self.lineages("server")) - before if list((states / new).glob("r*"))]
        )
        return job

    def ended(self, job: str) -> dict[str, Any]:
        """FLARE's status of a job once it has ended, its manifest, and its finished rounds."""
        status = self.lead.wait_for_job(job, timeout=400, poll_interval=0.3)["status"]
        found = {"status": status, "finished": []}
        run = run_folder(Path(self.lead.download_job_result(job, str(self.folder / "downloads"))))
        if (run / "manifest.json").exists():
            found |= json.loads((run / "manifest.json").read_text())
        if (run / "history.json").exists():
            found["finished"] = json.loads((run / "history.json").read_text())["rounds"]
        return found

    def lineages(self, site: str) -> list[str]:
        """Names of the states that a site keeps, the newest last."""
        return [path.name for path in sorted((self.kits / site / "fedpeft").glob("*-*"), key=os.path.getmtime)]


def rows() -> Iterator[Row]:
    """All of it, on one consortium."""
    with tempfile.TemporaryDirectory(prefix="machines-") as scratch:
        os.chmod(scratch, 0o755)  # another user comes as far as the kits
        consortium = Consortium(Path(scratch) / "first")
        try:
            consortium.start(*(consortium.kits / name for name in ("server", GOOD, HOSTILE)))
            kits.wait_until(lambda: kits.connected(consortium) == {GOOD, HOSTILE}, seconds=SECONDS)
            for part in PARTS:
                print(part.__name__, file=sys.stderr, flush=True)
                yield from part(consortium)
        finally:
            consortium.stop()


def _comes(what: Callable[[], Any], seconds: float = SECONDS) -> bool:
    with contextlib.suppress(AssertionError):
        kits.wait_until(what, seconds=seconds)
        return True
    return False


def _row(name: str, end: dict[str, Any], *, before: str = "") -> Row:
    """What the manifest says of the sites or of the job's end, and the replies that its rounds lack."""
    said = [f"{site}: {entry['problem']}" for site, entry in end.get("sites", {}).items() if "problem" in entry]
    said += [f"round {fault['round']}: {fault['what']}" for fault in end.get("faults", [])]
    if end.get("status") != "completed":
        said.append(f"{end.get('reason', 'no manifest')}")
    away = [site for entry in end["finished"] for site in (GOOD, HOSTILE) if site not in entry["sites"]]
    lost = f"{len(away)} replies of {' and '.join(dict.fromkeys(away))}" if away else "no reply"
    what = before + ("; ".join(dict.fromkeys(said)) or "nothing was noticed")
    return name, _shown(what), f"{lost}; {len(end['finished'])} rounds, {end['status']}"


def _shown(text: str) -> str:
    """A text without the paths of this run."""
    return re.sub(r"/\S*/machines-[^/\s]+(/\S+)*/", "…/", text)


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
    yield _row("nothing, for comparison", consortium.ended(consortium.submit()))
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
    below = [child for one in kits.processes_below(consortium.kits / HOSTILE) for child in one.children()]
    return [one for one in below if "fedpeft.worker.training_process" in one.cmdline()]


def _memory(consortium: Consortium) -> Iterator[Row]:
    """A training process gets the signal that the kernel sends where memory ends, or is refused more memory."""
    for times in (1, 2):
        job, seen = consortium.submit(), set()
        while len(seen) < times:
            (process,) = kits.wait_until(lambda: [one for one in _trainers(consortium) if one.pid not in seen])  # noqa: B023
            seen.add(process.pid)
            process.kill()
        name = f"SIGKILL to a site's training process, as the kernel's where memory ends, {times} times"
        yield _row(name, consortium.ended(job))
    job, limited = consortium.submit("training.local_epochs=2"), set()
    while consortium.lead.get_job_meta(job)["status"].partition(":")[0] != "FINISHED":
        for process in _trainers(consortium):
            with contextlib.suppress(psutil.Error):
                if process.pid not in limited and process.memory_info().rss > 10**8:
                    process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms,) * 2)
                    limited.add(process.pid)
        time.sleep(0.1)
    yield _row(
        f"the kernel refuses more memory to a site's training (RLIMIT_AS, {len(limited)} processes)",
        consortium.ended(job),
    )


def _lying(consortium: Consortium, **lies: Any) -> dict[str, str]:
    """The environment of a participant whose jobs' processes tell these lies."""
    folder = consortium.folder / "lies"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(lying_processes.CUSTOM)
    (folder / "lies.json").write_text(json.dumps({"hello": "", "rounds": {}, **lies}))
    paths = [str(folder), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    return {lying_processes.LIES: str(folder / "lies.json"), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _hellos(consortium: Consortium) -> Iterator[Row]:
    """A site with a certificate of its own whose code lies in the handshake, past its own filters."""
    kit = consortium.kits / HOSTILE
    filters = (kit / "local" / "privacy.json").rename(consortium.folder / "privacy.json")
    consortium.restart(kit, **_lying(consortium))
    for name in lying_processes.HELLOS:
        _lying(consortium, hello=name)
        yield _row(f"in a site's handshake: {name}", consortium.ended(consortium.submit()))
    filters.rename(kit / "local" / "privacy.json")
    consortium.restart(kit)


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
    yield _row("the same kit started on a second machine while a job runs", consortium.ended(job))
    yield _row("a job while both run", consortium.ended(consortium.submit()))
    consortium.stop(copied)
    again = "it is connected; " if consortium.restart(kit) else "it does not connect; "
    yield _row("the second stopped, the first started again", consortium.ended(consortium.submit()), before=again)


def _connecting(consortium: Consortium, name: str, kit: Path, **environment: str) -> Row:
    """A job after a site has tried to connect, or why it does not."""
    if consortium.restart(kit, **environment):
        return _row(name, consortium.ended(consortium.submit()), before="it connects; ")
    values = {**kits.TRUE_ENVIRONMENT, **environment}
    command = python("-m", "fedpeft.cli", "doctor", "--startup-kit", str(kit))
    said = subprocess.run(command, capture_output=True, text=True, check=False, env=values).stdout
    why = re.findall(r"fail (?:clock|ports) (.*?)(?= (?:pass|warn|fail) |$)", " ".join(said.split()))
    return name, f"it does not connect; fedpeft doctor says there: {' '.join(why)}", "that site, no other"


def _clocks(consortium: Consortium) -> Iterator[Row]:
    """A site whose clock is off."""
    found = sorted(Path("/").glob(CLOCK))
    kit = consortium.kits / HOSTILE
    for days, name in {1: "a day ahead", -1: "a day behind", 400: "400 days ahead"}.items():
        what = f"a site's clock is {name} (libfaketime)"
        clock = {"FAKETIME": f"{days:+d}d", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "LD_PRELOAD": str(*found[:1])}
        yield _connecting(consortium, what, kit, **clock) if found else (what, NOT_TRIED, "nothing")
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
    yield "two servers in one project.yml", f"nvflare provision ends with {done.returncode}: {said[-1].strip()}", "nothing"
    job = consortium.running("training.rounds=8")
    copied = _copy(consortium.kits / "server", consortium.folder / "copied-server")
    consortium.start(copied)
    time.sleep(40)
    text = (copied / "console.txt").read_text()
    print(text, file=sys.stderr)
    before = f"the second runs {_running(copied, SERVER)} processes; FLARE says {consortium.lead.get_job_meta(job)['status']}; "
    yield _row(
        "a copy of the server's kit started beside it (same port and store) while a job runs",
        consortium.ended(job),
        before=before,
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


def _orders(consortium: Consortium) -> Iterator[Row]:
    """A hostile server's orders to one site: one lie in each round of a job, and those of the handshake."""
    server, own = consortium.kits / "server", consortium.kits / GOOD / "fedpeft"
    consortium.ended(consortium.submit())
    (other,) = consortium.lineages(GOOD)
    consortium.stop(server)
    lies = {
        "target": GOOD,
        "other": other,
        "rounds": {str(n): name for n, name in enumerate(lying_processes.ORDERS, 2)},
    }
    consortium.start(server, **_lying(consortium, **lies))
    kits.wait_until(lambda: kits.connected(consortium) == {GOOD, HOSTILE}, seconds=300)
    kept = _content(own / other)
    found = consortium.ended(consortium.submit(f"training.rounds={len(lying_processes.ORDERS) + 1}"))
    for number, name in lies["rounds"].items():
        said = [one["what"] for one in found.get("faults", []) if one["round"] == int(number)]
        taken = [entry["sites"].keys() for entry in found["finished"][int(number) - 1 : int(number)]]
        replied = (
            "the job ended before" if not taken else "it trained" if GOOD in taken[0] else "its reply of that round"
        )
        yield f"round {number}: {name}", "; ".join(said) or found.get("reason", "nothing was noticed"), replied
    for name in lying_processes.GREETINGS:
        _lying(consortium, **lies | {"hello": name, "rounds": {}})
        yield _row(f"in the server's handshake: {name}", consortium.ended(consortium.submit()))
    same = "is as it was" if _content(own / other) == kept else "differs"
    yield "after all of them", f"the site's state of the other job {same}", "nothing" if "was" in same else "it"


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _unguarded(consortium: Consortium) -> Iterator[Row]:
    """A FLARE server without fedpeft's checks of jobs sends to sites that have them."""
    server, mark = consortium.kits / "server", consortium.folder / "ran"
    consortium.stop(server)
    _edit(server / "local" / "resources.json.default", _without_checks)
    _edit(
        server / "local" / "authorization.json.default",
        lambda rights: rights["permissions"]["lead"].update(byoc="any", submit_job="any"),
    )
    consortium.start(server)
    kits.wait_until(lambda: kits.connected(consortium) == {GOOD, HOSTILE}, seconds=300)
    for name, change in _foreign_jobs(mark).items():
        try:
            job = consortium.submit(change=change)
        except Exception as error:  # FLARE's exceptions share no class
            yield name, f"that server refuses it, too: {str(error)[:200]}", "nothing"
            continue
        status = consortium.lead.wait_for_job(job, timeout=400, poll_interval=0.3)["status"]
        time.sleep(2)  # FLARE notes the sites' answers afterwards
        answers = consortium.lead.get_job_meta(job).get("job_deploy_detail") or []
        said = sorted({one.partition(": ")[2] for one in answers if GOOD in one or HOSTILE in one})
        kept = [
            file for folder in (server, consortium.folder / "storage") for file in folder.rglob("*") if file.is_file()
        ]
        out = ["a variable of the site"] * any(kits.SECRET.encode() in file.read_bytes() for file in kept)
        lost = ", ".join(["code ran at a site"] * mark.exists() + out) or "nothing"
        yield f"it sends {name}", f"{status}; the sites: {'; '.join(said)[:300]}", lost
        mark.unlink(missing_ok=True)


def _edit(file: Path, change: Callable[[dict], Any]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def _without_checks(settings: dict[str, Any]) -> None:
    settings["class_list_enforcement_mode"] = "off"
    settings["components"] = [
        one for one in settings["components"] if "fedpeft." not in one["path"] or one["id"] == "job_manager"
    ]


def _foreign_jobs(mark: Path) -> dict[str, Callable[[Path], Any]]:
    def client(edit: Callable[[dict], Any]) -> Callable[[Path], Any]:
        return lambda job: _edit(job / "app" / "config" / "config_fed_client.json", edit)

    def executor(settings: dict) -> dict:
        return settings["executors"][0]["executor"]

    def with_code(job: Path) -> None:
        (job / "app" / "custom").mkdir()
        (job / "app" / "custom" / "own.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Own: pass\n")
        client(lambda settings: executor(settings).update(path="own.Own", args={}))(job)

    launcher = "nvflare.app_common.launchers.subprocess_launcher.SubprocessLauncher"
    command = {"path": "subprocess.check_call", "args": {"args": ["touch", str(mark)]}}
    cheat = [{"tasks": ["*"], "filters": [{"path": "nvflare.app_common.filters.svt_privacy.SVTPrivacy"}]}]
    return {
        "a job with code of its own": with_code,
        "another executor of FLARE, which runs a command": client(
            lambda settings: executor(settings).update(path=launcher, args={"script": f"touch {mark}"})
        ),
        "a function of Python that runs a command, as a component": client(
            lambda settings: settings["components"].append({"id": "other", **command})
        ),
        "filters of its own": client(lambda settings: settings.update(task_result_filters=cheat)),
        "a text that reads a variable of the site": client(
            lambda settings: executor(settings)["args"]["method"].update(name="{$DB_PASSWORD}")
        ),
        "10,000 rounds": client(lambda settings: executor(settings)["args"]["training"].update(rounds=10**4)),
    }


PARTS = (_others, _memory, _hellos, _twice, _clocks, _certificates, _two_servers, _orders, _unguarded)

if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)

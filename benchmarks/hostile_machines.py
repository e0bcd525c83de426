# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A consortium over mutual TLS on machines where something is wrong: its neighbors, its clock, its kits, its server.

One server and two sites from start-up kits, each process a Python of its own, and one small job after the other. What
needs root (to become another user, to limit a process's memory) or the Debian package `faketime` is said to be not
tried where that is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from measured import ROOT, sections

sys.path.insert(0, str(ROOT / "tests" / "support"))
from warm_python import COMMAND

os.environ.setdefault(COMMAND, sys.executable)  # no process has its imports already

import kits

from fedpeft.jobs import write_job
from fedpeft.processes import end
from fedpeft.status import run_folder
from fedpeft.worker import fork_server

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
NOT_TRIED = "not tried here"
CLOCK = "/usr/lib/*/faketime/libfaketimeMT.so.1"
MEMORY = Path("/sys/fs/cgroup/memory")  # the first kind of control groups; of the second, /sys/fs/cgroup itself
FEW_MB = 60  # more than which a training process may not take once it has begun
PATCH = """
    import importlib.abc, importlib.util, sys

    class Hook(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name != "fedpeft.flare.executor":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            load = spec.loader.exec_module
            def exec_module(module):
                load(module)
                from hostile_machines import lie
                module.SiteExecutor.execute = lie(module.SiteExecutor.execute)
            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Hook())
"""
CODE = """
    from pathlib import Path
    from nvflare.apis.executor import Executor

    class Own(Executor):
        def __init__(self):
            super().__init__()
            Path({mark!r}).touch()

        def execute(self, *args):
            pass
"""
REGISTERED = "Successfully registered"
LIE = "FEDPEFT_LIE"  # environment variable with the name of the file that names the lie
Row = tuple[str, str, str]


def _nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def _fields(**values: Any) -> Callable[[Any], None]:
    return lambda reply: reply["DXO"]["meta"]["fedpeft"].update(values)


LIES: dict[str, Callable[[Any], Any]] = {
    "10**12 training samples": _fields(samples={"train": 10**12, "validation": 1, "test": 1}),
    "a shape of 2**40 rows": _fields(schema={"layer.0.output.down.weight": [2**40, 3]}),
    "a tensor's name with ANSI codes": _fields(schema={"\x1b[31mred\n": [2, 3]}),
    "a problem of 40 MB": _fields(problem="x" * 40 * 10**6),
    "lists 100 deep": _fields(slots=_nested(100)),
    "a field that no message has": _fields(patients=["name"]),
    "the other site's name": lambda reply: reply["DXO"]["meta"].update(client_name=GOOD, site_name=GOOD),
    "nothing at all": lambda reply: reply.clear(),
}


def lie(execute: Callable) -> Callable:
    """In the hostile site's process of a job: answer the handshake with a lie."""

    def executed(self: Any, task_name: str, *args: Any) -> Any:
        reply = execute(self, task_name, *args)
        name = Path(os.environ[LIE]).read_text()
        if task_name == "hello" and name in LIES:
            LIES[name](reply)
        return reply

    return executed


class Consortium:
    """A running server with two sites.

    Args:
        folder: of its start-up kits; other users of the machine may enter it.
    """

    def __init__(self, folder: Path) -> None:
        self.port = kits.free_port()
        self.folder = folder
        folder.mkdir(mode=0o755)
        self.kits = kits.provision(folder, port=self.port, policy=POLICY)
        self.running: set[Path] = set()

    def start(self, *names: str, environment: dict[str, str] | None = None) -> None:
        """Start participants, and the lead's session with the server."""
        for name in names:
            self.start_kit(self.kits / name, environment)
        if "server" in names:
            self.lead = kits.session(self.kits / kits.LEAD, seconds=300)

    def start_kit(self, kit: Path, environment: dict[str, str] | None = None) -> None:
        """Start a participant from any folder."""
        self.running.add(kit)
        with (kit / "console.txt").open("w") as console:
            subprocess.run(
                [kit / "startup" / "start.sh"],
                check=True,
                stdout=console,
                stderr=console,
                env={**kits.TRUE_ENVIRONMENT, **(environment or {})},
                cwd=kit.parent,
            )

    def restart(self, kit: Path, environment: dict[str, str] | None = None) -> bool:
        """Start a site again; whether it registers within two minutes."""
        self.stop(kit)
        self.start_kit(kit, environment)
        with contextlib.suppress(AssertionError):
            kits.wait_until(lambda: REGISTERED in (kit / "console.txt").read_text(), seconds=120)
            return True
        return False

    def stop(self, *kit_folders: Path) -> None:
        """End participants."""
        for kit in kit_folders or tuple(self.running):
            end(int(file.read_text()) for file in kit.glob("*pid.fl"))
            for file in kit.glob("*pid.fl"):
                file.unlink()
            self.running.discard(kit)

    def wait_for(self, *sites: str) -> bool:
        """Whether the server knows just these sites within two minutes."""
        with contextlib.suppress(AssertionError):
            kits.wait_until(lambda: kits.connected(self) == set(sites), seconds=120)
            return True
        return False

    def submit(self, *overrides: str) -> str:
        """Submit the small job."""
        folder = self.folder / secrets.token_hex(4)
        write_job(folder, "small", sections([*SMALL, "training.rounds=2", *overrides]))
        return self.lead.submit_job(str(folder))

    def ended(self, job: str) -> dict[str, Any]:
        """The manifest of a job, once it has ended, with FLARE's status, and the sites of its last round."""
        status = self.lead.wait_for_job(job, timeout=300, poll_interval=0.3)["status"]
        run = run_folder(Path(self.lead.download_job_result(job, str(self.folder / "downloads"))))
        files = {name: run / f"{name}.json" for name in ("manifest", "history")}
        read = {name: json.loads(file.read_text()) if file.exists() else {} for name, file in files.items()}
        return {"status": status, **read["manifest"], "history": read["history"]}


def rows() -> Iterator[Row]:
    """All of it, on one consortium."""
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o755)  # another user of the machine can come as far as the kits
        consortium = Consortium(Path(scratch) / "consortium")
        try:
            consortium.start("server", GOOD, HOSTILE)
            consortium.wait_for(GOOD, HOSTILE)
            yield from _neighbors(consortium)
            yield from _memory(consortium)
            yield from _hellos(consortium, Path(scratch))
            yield from _twice(consortium)
            yield from _clocks(consortium)
            yield from _two_servers(consortium, Path(scratch))
            yield from _unguarded(consortium, Path(scratch))
        finally:
            consortium.stop()


def _said(end: dict[str, Any]) -> str:
    """What the manifest says of the hostile site or of the job's end."""
    problems = [f"{site}: {entry['problem']}" for site, entry in end.get("sites", {}).items() if "problem" in entry]
    faults = [f"round {fault['round']}: {fault['what']}" for fault in end.get("faults", [])]
    return "; ".join([*problems, *faults]) or end.get("reason") or "nothing was noticed"


def _lost(end: dict[str, Any], *sites: str) -> str:
    rounds = end.get("history", {}).get("rounds", [])
    replies = [site for entry in rounds for site in sites or (GOOD, HOSTILE) if site not in entry["sites"]]
    what = f"{len(replies)} replies of {', '.join(dict.fromkeys(replies))}" if replies else "no reply"
    return f"{what}; {len(rounds)} of 2 rounds, {end['status']}"


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


def _neighbors(consortium: Consortium) -> Iterator[Row]:
    """Another user of the same machine."""
    end_of_job = consortium.ended(consortium.submit())
    yield "nothing, for comparison", _said(end_of_job), _lost(end_of_job)
    for name in (GOOD, "server"):
        ports = [
            found.laddr.port
            for process in kits.processes_below(consortium.kits / name)
            for found in process.net_connections("tcp")
            if found.status == psutil.CONN_LISTEN and found.laddr.ip == "127.0.0.1"
        ]
        said = as_nobody(lambda ports=ports: ", ".join(_knock(port) for port in ports))
        kind = "site" if name == GOOD else name
        yield (
            f"another user connects to the local port of a {kind}'s process",
            said,
            "nothing" if ("closed" in said) else said,
        )
    kept = [consortium.kits / GOOD / "fedpeft", consortium.kits / "server" / "fedpeft", consortium.folder / "storage"]
    jobs = [path for name in (GOOD, "server") for path in (consortium.kits / name).glob("????????-*")]
    for name, folders in (("what jobs keep", kept), ("the folders of jobs, with their logs", jobs)):
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        said = as_nobody(lambda files=files: f"{sum(map(_can_read, files))} of {len(files)} files can be read")
        yield f"another user reads {name}, at site and server", said, _nothing_if(said.startswith(("0 of", NOT_TRIED)))
    left = [path for path in Path(kits.SCRATCH.name).rglob("*") if stat.S_IMODE(path.lstat().st_mode) & 0o077]
    said = f"{len(left)} of what they left there is open to others"
    yield "another user looks at the temporary files of server and sites", said, _nothing_if(not left)
    yield "another user asks the simulator's fork server for a process", *_fork_server()


def _nothing_if(true: bool) -> str:
    return "nothing" if true else "what is in them"


def _can_read(file: Path) -> bool:
    try:
        file.open("rb").close()
    except OSError:
        return False
    return True


def _knock(port: int) -> str:
    """Connect, and wait whether the other end closes; FLARE's own would wait for a message."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.settimeout(10)
        try:
            return "the connection is closed" if connection.recv(1) == b"" else "an answer"
        except TimeoutError:
            return "the connection stays open"


def _fork_server() -> tuple[str, str]:
    server = fork_server.start()
    if server is None:
        return NOT_TRIED, "nothing"
    try:
        address = os.environ.pop(fork_server.ADDRESS)

        def ask() -> str:
            request = {"module": "this", "environment": {}, "folder": "/"}
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
                control.connect(f"\0{address}")
                with contextlib.suppress(BrokenPipeError):
                    socket.send_fds(control, [json.dumps(request).encode()], [0])
                control.settimeout(60)  # the server first does its imports
                try:
                    answer = control.recv(64)
                except ConnectionError:
                    answer = b""
            return f"process {answer.decode()}" if answer else "the connection is closed"

        said = as_nobody(ask)
    finally:
        server.stdin.close()
        server.wait(60)
    return said, said if "process" in said else "nothing"


def _memory(consortium: Consortium) -> Iterator[Row]:
    """The kernel ends a training process for its memory, once and twice."""
    for times in (1, 2):
        job = consortium.submit("training.local_epochs=2")
        killed = _limited(consortium.kits / HOSTILE, job, times)
        ended = consortium.ended(job)
        name = f"the kernel ends a site's training process for its memory, {'once' if times == 1 else 'twice'}"
        if not killed:
            yield name, NOT_TRIED, "nothing"
            continue
        noted = consortium.kits / HOSTILE / job / "fedpeft" / "problem.json"
        own = json.loads(noted.read_text())["problem"] if noted.exists() else "in its log"
        yield name, f"{_said(ended)}; the site reads: {own.replace(str(consortium.kits), '…')}", _lost(ended)


def _limited(kit: Path, job: str, times: int) -> int:
    """Put the next training processes of a site into a control group with little memory; return how many ended."""
    group, limit = (MEMORY, "memory.limit_in_bytes") if MEMORY.is_dir() else (Path("/sys/fs/cgroup"), "memory.max")
    group = group / f"fedpeft-{secrets.token_hex(4)}"
    seen: list[psutil.Process] = []
    try:
        group.mkdir()
        (group / limit).write_text(str(FEW_MB * 10**6))
    except OSError:
        return 0
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (len(seen) == times and not any(_lives(p) for p in seen)):
        for process in kits.processes_below(kit):
            with contextlib.suppress(psutil.Error, OSError):
                if job not in " ".join(process.cmdline()):
                    continue
                for child in process.children():
                    if len(seen) < times and child not in seen and fork_server_or_worker(child):
                        (group / "cgroup.procs").write_text(str(child.pid))
                        seen.append(child)
        time.sleep(0.01)
    with contextlib.suppress(OSError):
        group.rmdir()
    return len(seen)


def fork_server_or_worker(process: psutil.Process) -> bool:
    """Whether a process is one that trains."""
    return "fedpeft.worker.training_process" in process.cmdline()


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _hellos(consortium: Consortium, scratch: Path) -> Iterator[Row]:
    """A site whose own code lies in the handshake, with a certificate of its own."""
    code = scratch / "code"
    code.mkdir()
    (code / "sitecustomize.py").write_text(textwrap.dedent(PATCH))
    named = scratch / "lie"
    paths = [str(code), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    kit = consortium.kits / HOSTILE
    named.write_text("")
    (kit / "local" / "privacy.json").rename(scratch / "privacy.json")  # with its filters
    consortium.restart(kit, {LIE: str(named), "PYTHONPATH": os.pathsep.join(paths)})
    for name in LIES:
        named.write_text(name)
        ended = consortium.ended(consortium.submit())
        yield f"in the handshake, over TLS: {name}", _said(ended), _lost(ended)
    (scratch / "privacy.json").rename(kit / "local" / "privacy.json")
    consortium.restart(kit)


def _twice(consortium: Consortium) -> Iterator[Row]:
    """A copy of a site's kit on another machine, beside the first."""
    copied = consortium.folder / "another machine" / HOSTILE
    for part in ("startup", "local"):
        shutil.copytree(consortium.kits / HOSTILE / part, copied / part)
    log = consortium.kits / "server" / "log.txt"
    before = log.stat().st_size
    consortium.start_kit(copied)
    with contextlib.suppress(AssertionError):
        kits.wait_until(lambda: HOSTILE in _after(log, before) and "egistered" in _after(log, before), seconds=60)
    lines = [line for line in _after(log, before).splitlines() if HOSTILE in line]
    said = lines[-1].rsplit(" - ", 1)[-1] if lines else "nothing"
    ended = consortium.ended(consortium.submit())
    both = "; the server's log: " + said[:200]
    yield "the same kit started on two machines, then a job", _said(ended) + both, _lost(ended)
    consortium.stop(copied)
    consortium.restart(consortium.kits / HOSTILE)
    ended = consortium.ended(consortium.submit())
    yield "the second of them stopped and the first started again, then a job", _said(ended), _lost(ended)


def _after(log: Path, size: int) -> str:
    return log.read_bytes()[size:].decode(errors="replace")


def _clocks(consortium: Consortium) -> Iterator[Row]:
    """A site whose clock is a day off."""
    found = sorted(Path("/").glob(CLOCK.lstrip("/")))
    kit = consortium.kits / HOSTILE
    for days in (1, -1):
        name = f"a site whose clock is a day {'ahead' if days > 0 else 'behind'}"
        if not found:
            yield name, NOT_TRIED, "nothing"
            continue
        clock = {"LD_PRELOAD": str(found[0]), "FAKETIME": f"{days:+d}d", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        if consortium.restart(kit, clock):
            ended = consortium.ended(consortium.submit())
            yield name, f"it connects; {_said(ended)}", _lost(ended)
        else:
            lines = [line for line in (kit / "console.txt").read_text().splitlines() if "CERTIFICATE" in line]
            reason = lines[-1].partition("certificate verify failed: ")[2].partition(" (")[0] if lines else "no reason"
            yield name, f"it does not connect: {reason}", "that site, until its clock is right"
    consortium.restart(kit)


def _two_servers(consortium: Consortium, scratch: Path) -> Iterator[Row]:
    """A site with kits of two consortia, and a job of each at the same time."""
    second = Consortium(scratch / "second")
    try:
        second.start("server", GOOD)
        second.wait_for(GOOD)
        jobs = {which: which.submit(*extra) for which, extra in ((consortium, ()), (second, (_alone(),)))}
        ends: dict[Consortium, dict[str, Any]] = {}
        threads = [
            threading.Thread(target=lambda which=which, job=job: ends.update({which: which.ended(job)}))
            for which, job in jobs.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        states = [sorted(path.name for path in (one.kits / GOOD / "fedpeft").iterdir()) for one in jobs]
        shared = set(states[0]) & set(states[1])
        said = f"first: {_said(ends[consortium])}; second: {_said(ends[second])}; {len(shared)} states are shared"
        lost = f"first: {_lost(ends[consortium])}; second: {_lost(ends[second], GOOD)}"
        yield "a site with kits of two servers, a job of each at the same time", said, lost
        foreign = second.folder / "foreign" / GOOD
        shutil.copytree(second.kits / GOOD / "startup", foreign / "startup")
        shutil.copytree(second.kits / GOOD / "local", foreign / "local")
        config = foreign / "startup" / "fed_client.json"
        config.write_text(config.read_text().replace(str(second.port), str(consortium.port)))
        second.start_kit(foreign)
        with contextlib.suppress(AssertionError):
            kits.wait_until(lambda: "CERTIFICATE" in (foreign / "console.txt").read_text(), seconds=60)
        refused = "CERTIFICATE_VERIFY_FAILED" in (foreign / "console.txt").read_text()
        what = "no connection: the certificate of that server is not of its authority" if refused else "it connects"
        yield "the kit of the second server, pointed at the first", what, "nothing" if refused else "unknown"
    finally:
        second.stop()


def _alone() -> str:
    return f"federation.sites=[{GOOD}]"


def _unguarded(consortium: Consortium, scratch: Path) -> Iterator[Row]:
    """A FLARE server without fedpeft's checks, to which guarded sites are connected."""
    server = consortium.kits / "server"
    consortium.lead.close()
    consortium.stop(server)
    resources = server / "local" / "resources.json.default"
    settings = json.loads(resources.read_text())
    settings["components"] = [
        one for one in settings["components"] if "fedpeft." not in one["path"] or "Store" in one["path"]
    ]
    settings["class_list_enforcement_mode"] = "off"
    resources.write_text(json.dumps(settings))
    rights = server / "local" / "authorization.json.default"
    allowed = json.loads(rights.read_text())
    allowed["permissions"]["lead"] |= {"byoc": "any", "submit_job": "any"}
    rights.write_text(json.dumps(allowed))
    consortium.start("server")
    consortium.wait_for(GOOD, HOSTILE)
    mark = scratch / "ran"
    for name, change in _foreign_jobs(mark).items():
        folder = consortium.folder / secrets.token_hex(4)
        write_job(folder, "small", sections([*SMALL, "training.rounds=2"]))
        change(folder)
        yield f"a server without fedpeft's checks sends {name}", *_sent(consortium, folder, mark)


def _foreign_jobs(mark: Path) -> dict[str, Callable[[Path], None]]:
    def client(edit: Callable[[dict], None]) -> Callable[[Path], None]:
        def change(job: Path) -> None:
            file = job / "app" / "config" / "config_fed_client.json"
            settings = json.loads(file.read_text())
            edit(settings)
            file.write_text(json.dumps(settings))

        return change

    def with_code(job: Path) -> None:
        (job / "app" / "custom").mkdir()
        (job / "app" / "custom" / "own.py").write_text(textwrap.dedent(CODE.format(mark=str(mark))))
        client(lambda settings: settings["executors"][0]["executor"].update(path="own.Own", args={}))(job)

    def component(path: str, **args: Any) -> Callable[[Path], None]:
        return client(lambda settings: settings["components"].append({"id": "other", "path": path, "args": args}))

    def executor(path: str, **args: Any) -> Callable[[Path], None]:
        return client(lambda settings: settings["executors"][0]["executor"].update(path=path, args=args))

    command = {"script": f"touch {mark}"}
    return {
        "a job with code of its own": with_code,
        "another executor of FLARE, which runs a command": executor(
            "nvflare.app_common.launchers.subprocess_launcher.SubprocessLauncher", **command
        ),
        "another component of FLARE, which runs a command": component(
            "nvflare.app_common.launchers.subprocess_launcher.SubprocessLauncher", **command
        ),
        "the standard library's function to run a command": component(
            "subprocess.check_call", args=["touch", str(mark)]
        ),
        "filters of its own in place of the site's": client(
            lambda settings: settings.update(
                task_result_filters=[
                    {"tasks": ["*"], "filters": [{"path": "nvflare.app_common.filters.svt_privacy.SVTPrivacy"}]}
                ]
            )
        ),
        "a text that reads a variable of the site": client(
            lambda settings: settings["executors"][0]["executor"]["args"]["method"].update(name="{$DB_PASSWORD}")
        ),
    }


def _sent(consortium: Consortium, job: Path, mark: Path) -> tuple[str, str]:
    """What sites and server say of a job, and what of the site's has come out."""
    mark.unlink(missing_ok=True)
    try:
        number = consortium.lead.submit_job(str(job))
    except Exception as error:  # FLARE's exceptions share no class
        return f"the server itself refuses: {str(error)[:200]}", "nothing"
    status = consortium.lead.wait_for_job(number, timeout=300, poll_interval=0.3)["status"]
    answers = consortium.lead.get_job_meta(number).get("job_deploy_detail") or []
    said = sorted({answer.partition(": ")[2] or answer for answer in answers if GOOD in answer or HOSTILE in answer})
    server = [consortium.kits / "server", consortium.folder / "storage"]
    texts = "".join(
        file.read_bytes().decode("utf-8", "replace")
        for folder in server
        for file in folder.rglob("*")
        if file.is_file() and job.name not in str(file)
    )
    out = ["code ran at a site"] * mark.exists() + ["a variable of the site"] * (kits.SECRET in texts)
    return f"{status}; the sites: {'; '.join(said)[:300]}", ", ".join(out) or "nothing"


def main(only: Sequence[str]) -> None:
    """Print the rows."""
    for row in rows():
        print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

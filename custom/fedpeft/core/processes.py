# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The environment of Python processes that fedpeft starts, and how processes end with all that they have started.

    python -m fedpeft.core.processes PID…                   # ends processes and all their descendants
    python -m fedpeft.core.processes guard MARK FOLDER…     # ends a family, see below, and removes folders

A module in the current folder with the name of one of Python's own, such as `random.py`, must not be imported instead
of that; and the path of a socket must be short, while batch systems give temporary folders long ones.

A family of processes ends, with all that they have started, when the process that started them ends. FLARE gives every
site its own session, and the system gives a process whose parent was killed to another parent, so each member carries a
mark in its environment. A guard process waits for the end of a pipe that only the starting process holds open, which
the system closes even after kill -9, and then ends all processes with the mark.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psutil

from fedpeft.core.errors import FedpeftError

SAFE_PATH, PATH, TEMPORARY = "PYTHONSAFEPATH", "PYTHONPATH", "TMPDIR"
MAX_SOCKET_LENGTH = 103 if sys.platform == "darwin" else 107  # bytes
SOCKET = "/pymp-xxxxxxxx/listener-xxxxxxxx"  # below the temporary folder, of multiprocessing
SHORT_PLACES = ("/tmp", "/var/tmp", "/dev/shm")


def python_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which Python, and each Python that it starts, imports nothing from the current folder.

    An empty entry of PYTHONPATH stands for that folder; relative ones become absolute.
    """
    changed = {**(os.environ if environment is None else environment), SAFE_PATH: "1"}
    if PATH in changed:
        places = (place for place in changed[PATH].split(os.pathsep) if place)
        changed[PATH] = os.pathsep.join(map(os.path.abspath, places))
    return changed


@contextmanager
def hide_current_folder() -> Iterator[None]:
    """Let every Python that is started in this block, as by a pool, import nothing from the current folder."""
    changed, before = python_environment(), {name: os.environ.get(name) for name in (SAFE_PATH, PATH)}
    os.environ.update({name: changed[name] for name in before if name in changed})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def no_sockets() -> str:
    """Return why the temporary folder cannot hold a socket, with the remedy; empty: it can."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder + SOCKET)) <= MAX_SOCKET_LENGTH:
        return ""
    max_length = MAX_SOCKET_LENGTH - len(SOCKET)
    return f"sockets in {folder} would have too long a path: set {TEMPORARY} to a folder of at most {max_length} bytes."


@contextmanager
def socket_folder() -> Iterator[dict[str, str]]:
    """Yield the environment variable for processes that need sockets: a short folder, removed with the block.

    It is empty where the temporary folder can hold them.
    """
    problem = no_sockets()
    if not problem:
        yield {}
        return
    for place in SHORT_PLACES:
        try:
            made = tempfile.TemporaryDirectory(prefix="fedpeft-", dir=place)
        except OSError:  # it is not there, or full, or not this user's to write to
            continue
        with made as folder:
            yield {TEMPORARY: folder}
        return
    raise FedpeftError(problem)


SECONDS_TO_END = 10


def end(pids: Iterable[int]) -> None:
    """End each process and its descendants, see `end_all`."""
    end_all(member for pid in pids for member in process_tree(pid))


def end_all(processes: Iterable[psutil.Process]) -> None:
    """Terminate processes in order; those that still run after ten seconds are killed."""
    running = list(processes)
    for member in running:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    for member in psutil.wait_procs(running, timeout=SECONDS_TO_END)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


def end_with_parent(parent: int) -> None:
    """Wait for the end of this process's parent, then end this process at once; for a thread."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def end_with_parent_later(parent: int) -> None:
    """Let this process end at once when its parent ends, even by kill -9; for the start of a pool's processes."""
    threading.Thread(target=end_with_parent, args=(parent,), daemon=True).start()


def process_tree(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants, itself first; empty if it has ended.

    FLARE gives every job and site its own session, so neither a process group nor a session holds them all.
    """
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


MARK, GUARD = "FEDPEFT_FAMILY", "guard"
ATTEMPTS = 5  # a member can start another one while it is being ended


@contextmanager
def family(*, holding: Sequence[int] = (), removing: Sequence[str] = ()) -> Iterator[dict[str, str]]:
    """Yield environment variables for processes that are ended with this block, or with this process.

    The file descriptors in `holding`, such as a lock's, stay open until the last member has ended; then the folders in
    `removing` are removed.
    """
    mark = secrets.token_hex(16)
    guard = subprocess.Popen(
        [sys.executable, "-m", __name__, GUARD, mark, *removing],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=holding,
        env=python_environment(),
        start_new_session=True,  # Ctrl-C and the end of a terminal must not end the guard
    )
    try:
        yield {MARK: f"{os.environ.get(MARK, '')} {mark}".strip()}
    finally:
        end_members(mark)
        guard.stdin.close()
        guard.wait()


def end_members(mark: str) -> None:
    """End every process that carries a mark."""
    for _ in range(ATTEMPTS):
        if not (running := members(mark)):
            return
        end_all(running)


def members(mark: str) -> list[psutil.Process]:
    """Return the processes that carry a mark, except this one."""
    marked = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and mark in process.environ().get(MARK, "").split():
                marked.append(process)
    return marked


def main(arguments: Sequence[str]) -> None:
    """End the processes with these ids; or, as a guard, wait for the end of standard input, then end all members."""
    if arguments[:1] != [GUARD]:
        return end(map(int, arguments))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    _, mark, *removing = arguments
    end_members(mark)
    for folder in removing:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])

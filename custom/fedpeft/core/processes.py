# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a Python process that fedpeft starts finds around it, and how processes end with all they have started.

    python -m fedpeft.core.processes PID…       # ends processes and all their descendants

A module in the current folder that is called like one of Python's own, such as `random.py`, must not be imported in its
place; and a socket's path has few letters, of which batch systems give a temporary folder too many.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
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
def without_current_folder() -> Iterator[None]:
    """Let every Python that is started within the block, as by a pool, import nothing from the current folder."""
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
    return (
        f"sockets in {folder} would have too long a path: set {TEMPORARY} to a folder of at most {max_length} letters."
    )


@contextmanager
def with_sockets() -> Iterator[dict[str, str]]:
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
    end_all(member for pid in pids for member in with_descendants(pid))


def end_all(processes: Iterable[psutil.Process]) -> None:
    """Terminate processes in order; those that still run after ten seconds are killed."""
    family = list(processes)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    for member in psutil.wait_procs(family, timeout=SECONDS_TO_END)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


def end_with(parent: int) -> None:
    """End this process at once when its parent has ended; for a thread of a forked process."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def with_descendants(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants, itself first; empty if it has ended.

    FLARE gives every job and site its own session, so neither a process group nor a session holds them all.
    """
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


if __name__ == "__main__":
    end(map(int, sys.argv[1:]))

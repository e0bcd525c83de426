# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The folders and locks of a job's lineage and of a simulator workspace; a lock is released when its process ends.

A job shares its lineage with the jobs that resume it, at the server and at each site. The lock of a workspace is beside
it, in the folder of its earlier runs, because FLARE deletes what is inside.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.files import code_of, drop

FILE = "in-use.lock"
IN_USE = "state-in-use"
SECONDS_TO_END = 30.0  # granted to the process of an aborted or killed job
POLL_SECONDS = 0.2


class StateLock:
    """The lineages that this process has locked."""

    def __init__(self) -> None:
        self._held: dict[Path, int] = {}

    def take(self, folder: Path, job: str, *, patience: float = SECONDS_TO_END) -> None:
        """Lock a lineage until `release` or the end of this process."""
        if folder in self._held:
            return
        try:
            descriptor = _open(folder / FILE, mode=0o600)
            try:
                _wait(descriptor, folder, patience)
                _sign(descriptor, job=job)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise LocalError(
                f"{folder / FILE} cannot be locked ({error.strerror}): let this user write there, on a file system "
                f"with locks and room.",
                code=code_of(error),
            ) from error
        self._held[folder] = descriptor

    def release(self) -> None:
        """Release all locks."""
        while self._held:
            os.close(self._held.popitem()[1])


def _open(file: Path, *, mode: int) -> int:
    """Open a lock file, which is created with its folder if it is missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    return os.open(file, os.O_RDWR | os.O_CREAT, mode)


def _sign(descriptor: int, **facts: str) -> None:
    """Write who has taken a lock into its file."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), **facts}).encode(), 0)


def _owner(descriptor: int) -> dict[str, Any]:
    """Return what the owner wrote into a lock file; empty: it ended in order, is still writing, or wrote no object."""
    try:
        return dict(json.loads(os.pread(descriptor, 1000, 0)))
    except (ValueError, TypeError, RecursionError):
        return {}


def may_be_in_use(folder: Path) -> bool:
    """Return whether a process may hold the lock of a lineage; True also if that cannot be found out."""
    try:
        descriptor = os.open(folder / FILE, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)


def is_known_to_be_held(file: Path) -> bool | None:
    """Return whether a process holds a lock file; None: there is none, or this machine cannot know."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None if str(_owner(descriptor).get("host", "")) not in ("", socket.gethostname()) else False
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _wait(descriptor: int, folder: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise LocalError(
                    f"the state in {folder} is used by {_job_of(descriptor)}: wait for the end of that job, or abort "
                    f"it.",
                    code=IN_USE,
                ) from None
            time.sleep(POLL_SECONDS)


def _job_of(descriptor: int) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        owner = _owner(descriptor)
        return f"job {owner['job']!s:.80} in process {int(owner['pid'])}"
    return "another process"


SECONDS_FOR_KILLED_RUN = 30  # for the processes of a run that was killed
RUNS = "_runs"
SERVER = "simulator_server"  # the simulator's name for its server, and so of the folder of the server's state


def runs_folder(workspace: Path) -> Path:
    """Return the folder of a workspace's earlier runs and its lock."""
    return workspace.with_name(f"{workspace.name}{RUNS}")


def kept_folder(workspace: Path) -> Path:
    """Return the folder of what server and sites keep from run to run, where no variable names another."""
    return workspace.with_name(f"{workspace.name}_state")


def kept_folders(run: Path) -> list[Path]:
    """Return where a run's state may be: beside its folder, and for an earlier run also beside its workspace."""
    runs = run.parent.name
    earlier = [run.parent.with_name(runs.removesuffix(RUNS))] if runs.endswith(RUNS) and runs != RUNS else []
    return [kept_folder(workspace) for workspace in (*earlier, run)]


def lock_file(workspace: Path) -> Path:
    """Return the file that a run in a workspace locks."""
    return runs_folder(workspace) / ".lock"


@contextlib.contextmanager
def held(workspace: Path) -> Iterator[int]:
    """Lock the workspace in this block; yield the lock's file descriptor, for child processes to hold it too."""
    descriptor = take(workspace)
    try:
        yield descriptor
    finally:
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def take(workspace: Path) -> int:
    """Lock the workspace until this process ends or the file descriptor is closed."""
    file = lock_file(workspace)
    try:
        descriptor = _open(file, mode=0o644)
    except OSError as error:
        raise FedpeftError(
            f"the workspace {workspace} cannot be used ({error.strerror}: {file}): name another folder with -w."
        ) from error
    try:
        _wait_for_workspace(descriptor, workspace)
        _sign(descriptor, since=time.strftime("%Y-%m-%d %H:%M:%S"))
        return descriptor
    except OSError as error:
        os.close(descriptor)
        raise FedpeftError(
            f"{file} cannot be locked ({error.strerror}): name a folder on a disk of this machine with -w."
        ) from error
    except BaseException:
        os.close(descriptor)
        raise


def is_held_by_a_parent(workspace: Path) -> bool:
    """Return whether a parent of this process holds the workspace."""
    import psutil

    try:
        descriptor = os.open(lock_file(workspace), os.O_RDONLY)
    except OSError:
        return False
    try:
        owner = _run_of(descriptor)
    finally:
        os.close(descriptor)
    return owner.get("host") == socket.gethostname() and owner.get("pid") in {
        process.pid for process in psutil.Process().parents()
    }


def _wait_for_workspace(descriptor: int, workspace: Path) -> None:
    """Take the lock; if a run's main process is dead, wait until its other processes have ended."""
    deadline = time.monotonic() + SECONDS_FOR_KILLED_RUN
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _run_of(descriptor)
            if _lives(owner):
                elsewhere = f" on {owner['host']}" if owner["host"] != socket.gethostname() else ""
                raise FedpeftError(
                    f"another run uses the workspace {workspace}, process {owner['pid']}{elsewhere} since "
                    f"{owner['since']}: wait for its end, end it (kill {owner['pid']}), or name another folder with -w."
                ) from None
            if time.monotonic() > deadline:
                raise FedpeftError(
                    f"processes of a run that was killed still use the workspace {workspace}: end them, or name "
                    f"another folder with -w."
                ) from None
            time.sleep(POLL_SECONDS)


def _run_of(descriptor: int) -> dict[str, Any]:
    """Return who holds the lock of a workspace; empty while it is being written."""
    owner = _owner(descriptor)
    try:
        return {"pid": int(owner["pid"]), "host": str(owner["host"])[:80], "since": str(owner["since"])[:19]}
    except (ValueError, KeyError, TypeError):
        return {}


def _lives(owner: dict[str, Any]) -> bool:
    import psutil

    if not owner or owner["host"] != socket.gethostname():
        return bool(owner)
    try:
        return psutil.Process(owner["pid"]).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):
        return False


KEPT = 3  # lineages of one job
KEPT_IN_ALL = 100
SECONDS_IN_USE = 24 * 3600  # a lineage with a round in this time may belong to a running job
LINEAGE = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")


def lineage_folder(lineages: Path, lineage: str) -> Path:
    """Return the folder of a lineage; its name comes from another participant and must not lead elsewhere."""
    if not LINEAGE.fullmatch(lineage):
        raise FedpeftError(
            f"the lineage {lineage!r:.60} is not a plain name: install the same fedpeft version everywhere."
        )
    return lineages / lineage


def prune(lineages: Path, current: str) -> None:
    """Remove unused lineages that are older than a day.

    The newest `KEPT` of the same job as `current` stay, and the newest `KEPT_IN_ALL` of all jobs, because leads choose
    the names of jobs.
    """
    job = _job(current)
    others = sorted((path for path in lineages.glob("*") if path.name != current), key=_made)
    own = [path for path in others if _job(path.name) == job]
    for old in dict.fromkeys([*own[: -(KEPT - 1)], *others[: -(KEPT_IN_ALL - 1)]]):
        with contextlib.suppress(FileNotFoundError):  # another job may remove it too
            if time.time() - old.stat().st_mtime > SECONDS_IN_USE and not may_be_in_use(old):
                drop(old)


def _made(lineage: Path) -> tuple[str, ...]:
    """Return the time in a lineage's name, and the name, for sorting; one without a time comes first."""
    _, *made = lineage.name.rsplit("-", 3)
    return *(made[:2] if len(made) == 3 else ("", "")), lineage.name


def _job(lineage: str) -> str:
    return lineage.rsplit("-", 3)[0]

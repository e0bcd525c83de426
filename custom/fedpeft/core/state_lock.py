# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A lock on a lineage's folder, so that one job at a time uses it.

The operating system releases the lock when its process ends, so that no stale lock remains.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import time
from pathlib import Path

from fedpeft.core.errors import LocalError
from fedpeft.core.files import code_of

FILE = "in-use.lock"
IN_USE = "state-in-use"
SECONDS_TO_END = 30.0  # granted to the process of an aborted or killed job
POLL_SECONDS = 0.2


class StateLock:
    """The lineages that this process has locked."""

    def __init__(self) -> None:
        self._held: dict[Path, int] = {}

    def take(self, folder: Path, job: str, *, patience: float = SECONDS_TO_END) -> None:
        """Lock a lineage until `release` or the end of this process.

        Args:
            folder: of the lineage; created if it is missing.
            job: FLARE's job id, named in the error that another job gets.
            patience: seconds to wait for a process that holds it.

        Raises:
            LocalError: another process holds it, or the lock file cannot be created.
        """
        if folder in self._held:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                _wait(descriptor, folder, patience)
                os.ftruncate(descriptor, 0)
                os.pwrite(
                    descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "job": job}).encode(), 0
                )
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


def is_in_use(folder: Path) -> bool:
    """Whether a process holds the lock of a lineage's folder."""
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


def is_held(file: Path) -> bool | None:
    """Whether a process holds a lock file; None: there is none, or this machine cannot say.

    Args:
        file: of this lock or of a workspace's, which names the machine of whoever took it last.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None if _host(descriptor) not in ("", socket.gethostname()) else False
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _host(descriptor: int) -> str:
    """Return the machine of whoever took the lock last; empty: its owner ended in order, or the lock is older."""
    try:
        return str(json.loads(os.pread(descriptor, 1000, 0)).get("host", ""))
    except (ValueError, AttributeError, RecursionError):
        return ""


def _wait(descriptor: int, folder: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise LocalError(
                    f"the state in {folder} is used by {_owner(descriptor)}: wait for the end of that job, or abort "
                    f"it.",
                    code=IN_USE,
                ) from None
            time.sleep(POLL_SECONDS)


def _owner(descriptor: int) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        owner = json.loads(os.pread(descriptor, 1000, 0))
        return f"job {owner['job']!s:.80} in process {int(owner['pid'])}"
    return "another process"

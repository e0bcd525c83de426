# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""End processes and all their descendants: `python -m fedpeft.core.processes PID…`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable

import psutil

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

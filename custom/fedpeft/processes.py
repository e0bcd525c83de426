# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""End processes together with all that they have started: `python -m fedpeft.processes PID…`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable

import psutil

SECONDS_TO_END = 10


def end(pids: Iterable[int]) -> None:
    """Ask each process and its descendants to end, parents first; those that do not within ten seconds are killed.

    FLARE gives every job a session of its own, so neither a process group nor a session holds them all.
    """
    family = [member for pid in pids for member in _with_descendants(pid)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    for member in psutil.wait_procs(family, timeout=SECONDS_TO_END)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


def _with_descendants(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


if __name__ == "__main__":
    end(map(int, sys.argv[1:]))

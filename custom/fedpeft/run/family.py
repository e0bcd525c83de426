# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""End processes, with all that they have started, when the process that started them ends.

FLARE gives every site its own session, and the system gives a process whose parent was killed to another parent, so
each member carries a mark in its environment. A guard process, `python -m fedpeft.run.family MARK`, waits for the end
of a pipe that only the starting process holds open, which the system closes even after kill -9, and then ends all
processes with the mark.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

import psutil

from fedpeft.core.processes import end_all, python_environment

MARK = "FEDPEFT_FAMILY"
ATTEMPTS = 5  # a member can start another one while it is being ended


@contextlib.contextmanager
def family(*, holding: Sequence[int] = (), removing: Sequence[str] = ()) -> Iterator[dict[str, str]]:
    """Yield environment variables for processes that are ended with this block, or with this process.

    Args:
        holding: file descriptors that stay open until the last member has ended, such as that of a lock.
        removing: folders that are removed then.
    """
    mark = secrets.token_hex(16)
    guard = subprocess.Popen(
        [sys.executable, "-m", "fedpeft.run.family", mark, *removing],
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


def main() -> None:
    """Wait for the end of standard input, then end the members."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    mark, *removing = sys.argv[1:]
    end_members(mark)
    for folder in removing:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

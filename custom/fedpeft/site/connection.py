# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The executor's connection to a training process, which may die at any time."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from typing import Any

from fedpeft.core.printable import one_line
from fedpeft.site.forked_process import start_python
from fedpeft.site.frames import BadFrame, receive, send, unpack

WORKER = "fedpeft.site.training_process"
POLL_SECONDS = 0.2
SECONDS_TO_END = 5.0


class Lost(Exception):
    """The training process has ended; the message says how."""


class Aborted(Exception):
    """The answer is no longer needed: the task was aborted."""


class WorkerProcess:
    """One running training process.

    Args:
        module: the Python module that it runs.
    """

    def __init__(self, module: str = WORKER) -> None:
        self._connection, other = Pipe()
        with other:
            self._process = start_python(module, other.fileno())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, header: Mapping[str, Any], tensors: Mapping[str, Any] | None = None) -> None:
        """Send one request.

        Raises:
            Lost: the process has ended.
        """
        try:
            send(self._connection, header, tensors)
        except OSError:
            raise Lost(self._end()) from None

    def receive(
        self, aborted: Callable[[], bool], progress: Callable[[str], None]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Wait for the answer to the last request.

        Args:
            aborted: polled while waiting; the process is ended once it returns True.
            progress: takes each line that says how far the process is.

        Raises:
            Lost: the process ended, or sent something that is not a frame.
            Aborted: `aborted` returned True.
        """
        try:
            while True:
                self._wait(aborted)
                header, tensors = unpack(receive(self._connection))
                if "progress" not in header:
                    return header, tensors
                progress(one_line(str(header["progress"])))
        except BadFrame as error:
            self.end()
            raise Lost(f"sent {error}") from error
        except (EOFError, OSError):
            raise Lost(self._end()) from None

    def _wait(self, aborted: Callable[[], bool]) -> None:
        """Wait for the next frame; raises as `receive`."""
        while not self._connection.poll(POLL_SECONDS):
            if aborted():
                self.end()
                raise Aborted
            # a child of the dead process, such as one that decodes images, can hold its pipe open
            if self._process.poll() is not None and not self._connection.poll():
                raise Lost(self._end())

    def kill(self) -> None:
        """Kill the process; files on the site's disk stay complete, and a pending `receive` raises `Lost`."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process, wait for its end and close the pipe."""
        self.kill()
        self._process.wait()
        self._connection.close()

    def _end(self) -> str:
        """Describe how the process ended."""
        try:
            code = self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            code = None
        self.end()
        if code is None:
            return "closed its pipe but did not end"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name
        return f"was killed by signal {-code} ({name}{': out of memory?' if -code == signal.SIGKILL else ''})"

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The executor's end of the pipe: a training process that may die at any time."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from typing import Any

from fedpeft.worker.forked_process import start_python
from fedpeft.worker.frames import BadFrame, receive, send, unpack

WORKER = "fedpeft.worker.training_process"
POLL_SECONDS = 0.2
SECONDS_TO_END = 5.0


class Lost(Exception):
    """The training process is no more; the sentence says how it ended."""


class Aborted(Exception):
    """Nobody waits for the answer any more."""


class WorkerProcess:
    """One running training process.

    Args:
        module: what Python runs in it.
    """

    def __init__(self, module: str = WORKER) -> None:
        self._connection, other = Pipe()
        with other:
            self._process = start_python(module, other.fileno())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, header: Mapping[str, Any], tensors: Mapping[str, Any] | None = None) -> None:
        """Send one request.

        Raises:
            Lost: it is gone.
        """
        try:
            send(self._connection, header, tensors)
        except OSError:
            raise Lost(self._end()) from None

    def answer(self, aborted: Callable[[], bool]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Wait for the answer to the last request.

        Args:
            aborted: asked again and again; the process is ended once it says so.

        Raises:
            Lost: it ended instead, or answered with something else than a frame.
            Aborted: `aborted` said so.
        """
        try:
            while not self._connection.poll(POLL_SECONDS):
                if aborted():
                    self.end()
                    raise Aborted
                # a process of its own, say one that decodes images, can hold the dead one's pipe open
                if self._process.poll() is not None and not self._connection.poll():
                    raise Lost(self._end())
            return unpack(receive(self._connection))
        except BadFrame as error:
            self.end()
            raise Lost(f"sent {error}") from error
        except (EOFError, OSError):
            raise Lost(self._end()) from None

    def kill(self) -> None:
        """End it at once; nothing on the site's disk is left half written. Whoever waits for an answer learns of it."""
        self._process.kill()

    def end(self) -> None:
        """End it at once, and the pipe with it."""
        self.kill()
        self._process.wait()
        self._connection.close()

    def _end(self) -> str:
        """How it ended by itself."""
        try:
            code = self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            code = None
        self.end()
        if code is None:
            return "closed its pipe and went on"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name
        return f"was killed by signal {-code} ({name}{': out of memory?' if -code == signal.SIGKILL else ''})"

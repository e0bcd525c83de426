# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Start a site's training process: forked where the run has a fork server, else as a fresh Python."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

from fedpeft.core.python_environment import python_environment
from fedpeft.site.fork_server import ADDRESS, same_user


def start_python(module: str, fd: int) -> subprocess.Popen | ForkedProcess:
    """Run `python -m MODULE FD`.

    Args:
        module: the Python module to run.
        fd: a file descriptor that the process inherits; its number there may differ.
    """
    if address := os.environ.get(ADDRESS):
        with contextlib.suppress(OSError):  # the server has ended, or the environment is too long for a message
            return ForkedProcess(address, module, fd)
    command = [sys.executable, "-m", module, str(fd)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[fd], env=python_environment())


SECONDS_TO_CONNECT = 5.0  # to a server whose queue is full, perhaps another user's under its name


class ForkedProcess:
    """A process started by a fork server, with the part of the `subprocess.Popen` interface that its owner uses.

    Args:
        address: the server's name.
        module: the Python module to run.
        fd: a file descriptor that it inherits.

    Raises:
        OSError: there is no such server.
    """

    def __init__(self, address: str, module: str, fd: int) -> None:
        request = {"module": module, "environment": dict(os.environ), "folder": os.getcwd()}
        self._numbers: list[int] = []  # its id once it has begun, and its exit code once it has ended
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(SECONDS_TO_CONNECT)
        try:
            self._control.connect(f"\0{address}")
            if not same_user(self._control):
                raise PermissionError(f"the fork server {address} is another user's")
            socket.send_fds(self._control, [json.dumps(request).encode()], [fd])
            self._control.settimeout(None)
        except OSError:
            self._control.close()
            raise

    @property
    def pid(self) -> int | None:
        """Its process id, once the server has done its imports; None if it never started."""
        if not self._numbers:
            self._receive(None)
        began = self._control.fileno() >= 0 or len(self._numbers) == 2
        return self._numbers[0] if began else None

    def poll(self) -> int | None:
        """Its exit code, if it has ended; that of a killed process where the server has gone with it."""
        while self._control.fileno() >= 0 and self._receive(0.0):
            pass
        return self._numbers[-1] if self._control.fileno() < 0 else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it has not ended after `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not self._receive(left):
                raise subprocess.TimeoutExpired("fork", timeout)
        return code

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def _receive(self, seconds: float | None) -> bool:
        """Wait for the next number and return whether one came; the connection closes after the second one."""
        self._control.settimeout(seconds)
        try:
            message = self._control.recv(64)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            message = b""
        self._numbers.append(int(message or -signal.SIGKILL))
        if not message or len(self._numbers) == 2:
            self._control.close()
        return True

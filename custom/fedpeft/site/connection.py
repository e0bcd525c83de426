# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The pipe between a site's executor and its training process: frames, and the process, which may die at any time.

A frame is a JSON object and named tensors, no pickle: two messages of a `multiprocessing` connection, which prefixes
each with its length. A `Failure` has the full message for the site's own log and the code that the server gets.

The process is forked if the run has a fork server; otherwise it is a fresh Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from fedpeft.core.errors import FedpeftError, is_out_of_memory
from fedpeft.core.files import DISK_FULL, is_full
from fedpeft.core.processes import python_environment
from fedpeft.core.text import one_line
from fedpeft.job.strict_files import declared_part
from fedpeft.protocol.fields import CODES, SETTING_MARK, is_known
from fedpeft.site.fork_server import ADDRESS, same_user

Frame = tuple[bytes, bytes]


class BadFrame(ValueError):
    """Received bytes that are not a valid frame; the message says what is wrong."""


def send(connection: Connection, header: Mapping[str, Any], tensors: Mapping[str, Any] | None = None) -> None:
    """Send one frame; floats of the header keep every bit, tensors may have any dtype."""
    blob = b""
    if tensors:
        from safetensors.torch import save

        blob = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    connection.send_bytes(json.dumps(header).encode())
    connection.send_bytes(blob)


def receive(connection: Connection) -> Frame:
    """Wait for one frame and return it without parsing; EOFError or OSError: the other side closed the connection."""
    return connection.recv_bytes(), connection.recv_bytes()


def unpack(frame: Frame) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and tensors of a frame, or raise `BadFrame`."""
    try:
        header = json.loads(frame[0])
    except ValueError as error:
        raise BadFrame(f"a header that is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise BadFrame(f"a header that is not a JSON object but {type(header).__name__}")
    return header, _tensors(frame[1])


def _tensors(blob: bytes) -> dict[str, Any]:
    if not blob:
        return {}
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return dict(sorted(load(blob).items()))  # they come in an order that differs from call to call
    except SafetensorError as error:
        raise BadFrame(f"tensors that are not safetensors: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a request of the server could not be answered."""

    detail: str  # the full message, for the site's own log
    code: str  # what the server gets, one of `protocol.fields.CODES`
    setting: str = ""  # the job's setting that is the cause; empty unless the code's sentence names one
    traceback: str = ""  # of the exception; empty if the message is enough
    retryable: bool = False  # whether another attempt in a new process may succeed

    def __post_init__(self) -> None:
        if not is_known(self.code, self.setting):
            raise ValueError("a problem with a code or a setting that is not declared")

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Convert an exception; a `FedpeftError` (bad input) is not retryable, any other exception is."""
        if isinstance(error, FedpeftError):
            setting = declared_part(error.setting) if SETTING_MARK in CODES[error.code] else ""
            return cls(detail=str(error), code=error.code, setting=setting)
        name = type(error).__name__
        return cls(
            detail=f"{name}: {error}",
            code=DISK_FULL if is_full(error) else "out-of-memory" if is_out_of_memory(error) else "training-failed",
            traceback="".join(traceback.format_exception(error)),
            retryable=True,
        )


def start_python(module: str, fd: int) -> subprocess.Popen | ForkedProcess:
    """Run `python -m MODULE FD`; the process inherits the file descriptor, whose number there may differ."""
    if address := os.environ.get(ADDRESS):
        with contextlib.suppress(OSError):  # the server has ended, or the environment is too long for a message
            return ForkedProcess(address, module, fd)
    command = [sys.executable, "-m", module, str(fd)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[fd], env=python_environment())


SECONDS_TO_CONNECT = 5.0  # the server's queue may be full, or it may be another user's under its name


class ForkedProcess:
    """A process of a fork server, with the used part of `subprocess.Popen`; raises OSError if there is no server."""

    def __init__(self, address: str, module: str, fd: int) -> None:
        request = {"module": module, "environment": dict(os.environ), "folder": os.getcwd()}
        self._pid: int | None = None  # once it has begun
        self._code: int | None = None  # once it has ended
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
        if self._pid is None and self._code is None:
            self._receive(None)
        return self._pid

    def poll(self) -> int | None:
        """Return its exit code if it has ended; that of a killed process if the server has gone too."""
        while self._code is None and self._receive(0.0):
            pass
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, or raise `subprocess.TimeoutExpired`."""
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
        """Wait for the server's next message, first the id and then the exit code; return whether one came."""
        self._control.settimeout(seconds)
        try:
            message = self._control.recv(64)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            message = b""
        if message and self._pid is None:
            self._pid = int(message)
        else:
            self._code = int(message or -signal.SIGKILL)
            self._control.close()
        return True


WORKER = "fedpeft.site.training_process"
POLL_SECONDS = 0.2
SECONDS_TO_END = 5.0


class Lost(Exception):
    """The training process has ended; the message says how."""


class Aborted(Exception):
    """The answer is no longer needed: the task was aborted."""


class WorkerProcess:
    """One running training process."""

    def __init__(self, module: str = WORKER) -> None:
        self._connection, other = Pipe()
        with other:
            self._process = start_python(module, other.fileno())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, header: Mapping[str, Any], tensors: Mapping[str, Any] | None = None) -> None:
        """Send one request, or raise `Lost`."""
        try:
            send(self._connection, header, tensors)
        except OSError:
            raise Lost(self._describe_end()) from None

    def receive(
        self, aborted: Callable[[], bool], progress: Callable[[str], None]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Wait for the answer to the last request; `progress` is called with each line about the progress.

        Once `aborted` returns True, end the process and raise `Aborted`; raise `Lost` if it ends or sends no frame.
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
            raise Lost(self._describe_end()) from None

    def _wait(self, aborted: Callable[[], bool]) -> None:
        """Wait for the next frame; raises as `receive`."""
        while not self._connection.poll(POLL_SECONDS):
            if aborted():
                self.end()
                raise Aborted
            # a child of the dead process, such as one that decodes images, can hold its pipe open
            if self._process.poll() is not None and not self._connection.poll():
                raise Lost(self._describe_end())

    def kill(self) -> None:
        """Kill the process; files on the site's disk stay complete, and a pending `receive` raises `Lost`."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process, wait for its end and close the pipe."""
        self.kill()
        self._process.wait()
        self._connection.close()

    def _describe_end(self) -> str:
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
        name = signal.Signals(-code).name if -code in set(signal.Signals) else "of real time"
        return f"was killed by signal {-code} ({name}{': out of memory?' if -code == signal.SIGKILL else ''})"

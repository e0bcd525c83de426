# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Fork a simulated run's training processes after all imports: `python -m fedpeft.site.fork_server FD`.

With fewer threads than sites FLARE's simulator ends a site's processes after every task and starts new ones, and such a
start is mostly imports. A forked process has them already. Unlike a process that is kept between tasks it has no state
of an earlier task, and there are never more of them than sites that FLARE runs at a time.

The server ends when its standard input closes: the process that started it holds the other end, and the system closes
that even after kill -9. It has one thread, and its imports must not touch a GPU: neither would survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from fedpeft.core.processes import python_environment

ADDRESS = "FEDPEFT_FORK_SERVER"  # environment variable with the server's name
IMPORTED = (
    "fedpeft.site.learner",
    "fedpeft.alignment.client_pia",
    "fedpeft.methods.adapters",
    "fedpeft.data.phantom",
    "transformers.models.vilt.modeling_vilt",
    "transformers.models.bert.tokenization_bert",
)
MAX_REQUEST = 2**20  # bytes
SECONDS_TO_REQUEST = 5.0
CREDENTIALS = struct.Struct("3i")  # process, user, group


def start() -> subprocess.Popen | None:
    """Start a fork server for every process that this one starts later; it ends when the returned object is deleted.

    Return None if that is not possible, or if the environment names the server of a parent process. The socket has an
    abstract name, so no file is left, whatever ends the run.
    """
    if sys.platform != "linux" or os.environ.get(ADDRESS):
        return None
    name = f"fedpeft-{secrets.token_hex(16)}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0{name}")
            listener.listen(128)
            command = [sys.executable, "-m", "fedpeft.site.fork_server", str(listener.fileno())]
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                env=python_environment(),
                start_new_session=True,  # Ctrl-C must reach only the process that starts it
            )
    except OSError:  # without a server every training process does its own imports
        return None
    os.environ[ADDRESS] = name
    return process


def stop(server: subprocess.Popen | None) -> None:
    """End a server with all processes that it has forked."""
    if server:
        os.environ.pop(ADDRESS, None)
        server.stdin.close()
        server.wait()


def same_user(connection: socket.socket) -> bool:
    """Return whether the other end's process is this user's: an abstract socket has no file permissions."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return CREDENTIALS.unpack(credentials)[1] == os.geteuid()


@dataclass(frozen=True, kw_only=True, eq=False)
class Child:
    """A forked process.

    Args:
        pid: its process id.
        ended: file descriptor that is readable once it has ended.
        control: connection to the process that requested it; when that end closes, the process is killed.
    """

    pid: int
    ended: int
    control: socket.socket

    def close(self) -> None:
        """Close this process's file descriptors of it."""
        os.close(self.ended)
        self.control.close()


def main() -> None:
    """Import, then fork on request until standard input closes; a forked process runs `python -m MODULE FD`."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()  # nothing that is imported is garbage, and looking for it takes a fifth of the time
    for name in IMPORTED:
        with contextlib.suppress(Exception):  # raised again in the process that needs the module
            importlib.import_module(name)
    gc.freeze()  # a collection would write to, and so copy, pages that all forked processes share
    gc.enable()
    request = _serve(listener)
    if request:
        _become(**request)


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Fork for every request; return the request in the forked process, None here once standard input has closed."""
    children: set[Child] = set()
    with selectors.PollSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        selector.register(listener, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj: key.data for key, _ in selector.select()}
            if sys.stdin in ready:
                for child in children:
                    os.kill(child.pid, signal.SIGKILL)
                return None
            for child in {child for child in ready.values() if child}:
                if child.control in ready:
                    selector.unregister(child.control)
                    os.kill(child.pid, signal.SIGKILL)  # not reaped before this, so the id still belongs to it
                if child.ended in ready:
                    selector.unregister(child.ended)
                    with contextlib.suppress(KeyError):
                        selector.unregister(child.control)
                    _report_end(child)
                    children.remove(child)
            if listener in ready and (accepted := _accept(listener)):
                control, request = accepted
                if (pid := os.fork()) == 0:
                    for child in children:
                        child.close()
                    control.close()
                    listener.close()
                    return request
                os.close(request["fd"])
                child = Child(pid=pid, ended=os.pidfd_open(pid), control=control)
                children.add(child)
                selector.register(child.ended, selectors.EVENT_READ, child)
                selector.register(control, selectors.EVENT_READ, child)
                with contextlib.suppress(OSError):
                    control.send(str(pid).encode())


def _accept(listener: socket.socket) -> tuple[socket.socket, dict[str, Any]] | None:
    """Read the waiting request; None if it is another user's or its process has ended."""
    control, _ = listener.accept()
    control.settimeout(SECONDS_TO_REQUEST)
    with contextlib.suppress(OSError, ValueError):
        if same_user(control):
            message, fds, *_ = socket.recv_fds(control, MAX_REQUEST, 1, socket.MSG_CMSG_CLOEXEC)
            if fds:
                control.settimeout(None)
                return control, {**json.loads(message), "fd": fds[0]}
    control.close()
    return None


def _report_end(child: Child) -> None:
    _, status = os.waitpid(child.pid, 0)
    with contextlib.suppress(OSError):
        child.control.send(str(os.waitstatus_to_exitcode(status)).encode())
    child.close()


def _become(*, module: str, fd: int, environment: dict[str, str], folder: str) -> None:
    """Run a module as Python would have run it for the process that sent the request."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    places = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [place for place in places if place and place not in sys.path]
    sys.argv = [module, str(fd)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

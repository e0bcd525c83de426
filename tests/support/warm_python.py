# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A command that starts like `python`, but from a process that has all imports: most of a start saved.

FLARE starts several Pythons for a job, and each takes seconds to import what a small job then uses for one. What it
starts from such a process is started alike, because `sys.executable` is this command there. Some runs of each kind stay
as they are for users: that imports of one process do not lean on those of another is tested there.
"""

import atexit
import contextlib
import multiprocessing
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

MODULES = {"fedpeft": ["-m", "fedpeft.cli"], "nvflare": ["-m", "nvflare.cli"]}  # of the other commands
# environment variables: the command, that without fedpeft and PEFT, and `python`
COMMAND, FRESH, TRUE_PYTHON = "FEDPEFT_WARM_PYTHON", "FEDPEFT_FRESH_PYTHON", "FEDPEFT_TRUE_PYTHON"
LAUNCHER = """#!{python} -IS
import json, os, signal, socket, sys
folder, name = os.path.split(sys.argv[0])
arguments = [*{modules}.get(name, []), *sys.argv[1:]]
first = next((one for one in arguments if one not in ("-u", "-P", "-B") and not one.startswith("-W")), "-")
if not "{address}" or first.startswith("-") and first not in ("-m", "-c"):
    os.execv("{python}", ["{python}", *arguments])
fds = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd < 3 or os.path.exists(f"/proc/self/fd/{{fd}}")
       and os.get_inheritable(fd)]
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect("\\0{address}")
passed = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2
ignored = [number for number in passed if signal.getsignal(number) == signal.SIG_IGN]
request = dict(arguments=arguments, environment=dict(os.environ), folder=os.getcwd(), fds=fds, ignored=ignored,
               executable=f"{{folder}}/python3", parents=[os.getppid()])
signal.pthread_sigmask(signal.SIG_BLOCK, passed)
socket.send_fds(server, [json.dumps(request).encode()], fds)
child = int(server.recv(100))
for number in set(passed) - set(ignored):
    signal.signal(number, lambda number, _: os.kill(child, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
for fd in fds:
    os.close(fd)
code = int(server.recv(100) or 1)
if code < 0:
    if -code in passed:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def use_python(executable: str) -> None:
    """Start further processes with it."""
    sys.executable = executable
    multiprocessing.set_executable(executable)


def start_or_find() -> None:
    """Start the server of this run; in a process of pytest-xdist there is one, and it has forked this process."""
    if COMMAND in os.environ:
        use_python(os.environ[TRUE_PYTHON])
    else:
        WarmPython()


def _start(*names: str) -> subprocess.Popen:
    with contextlib.ExitStack() as stack:
        fds = []
        for name in names:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind(f"\0{name}")
            listener.listen(128)
            fds.append(listener.fileno())
        command = [sys.executable, str(Path(__file__).with_name("warm_server.py")), *map(str, fds)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=fds, start_new_session=True)


def _write(command: Path, address: str) -> None:
    command.write_text(LAUNCHER.format(python=sys.executable, address=address, modules=MODULES))
    command.chmod(0o700)


class WarmPython:
    """The server, and `command`, which is started instead of `python`; beside it lie `python`, `fedpeft` and `nvflare`.

    Another one, in the environment as `FRESH`, has imported torch and transformers, but neither PEFT nor fedpeft. All
    are there until this process ends, and in the environment of the processes that it starts.
    """

    def __init__(self) -> None:
        linux = sys.platform == "linux"  # elsewhere all are true starts
        name, fresh_name = (f"fedpeft-tests-{secrets.token_hex(16)}" if linux else "" for _ in range(2))
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        self.command = Path(self._folder.name) / "python3"
        fresh = self.command.with_name("fresh") / "python3"
        fresh.parent.mkdir()
        for command in map(self.command.with_name, (self.command.name, "python", *MODULES)):
            _write(command, name)
        _write(fresh, fresh_name)
        self._server = _start(name, fresh_name) if linux else None
        os.environ |= {COMMAND: str(self.command), FRESH: str(fresh), TRUE_PYTHON: sys.executable}
        atexit.register(self.close)

    def close(self) -> None:
        """End the server and what it has forked."""
        if self._server:
            self._server.stdin.close()
            self._server.wait(60)
        self._folder.cleanup()

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Fork Pythons that have their imports already: `python warm_server.py FD FRESH`, started by warm_python.py.

At the socket FD they have fedpeft, FLARE and PEFT, at the socket FRESH torch and transformers alone. It imports with
the first request and ends, with all that it forked, when its standard input closes.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import itertools
import json
import os
import runpy
import select
import selectors
import signal
import socket
import sys
import threading
import traceback
import types
import warnings

from undrawn import UNDRAWN, leave_pictures_out

FRESH = (
    "torch",
    "transformers.modeling_utils",
    "transformers.models.vilt.modeling_vilt",
    "transformers.models.bert.tokenization_bert",
    "multiprocessing.spawn",
)
IMPORTED = (
    "fedpeft.site.fork_server",
    "fedpeft.site.site_tasks",
    "fedpeft.site.learner",
    "fedpeft.alignment.client_pia",
    "fedpeft.methods.adapters",
    "fedpeft.data.phantom",
    "fedpeft.scheduling.nsga2",
    "fedpeft.server.job_run",
    "fedpeft.report.outputs",
    "fedpeft.report.schedule_plot",
    "fedpeft.run.simulate",
    "fedpeft.report.history_reader",
    "fedpeft.report.status",
    "fedpeft.flare.admission_components",
    "fedpeft.flare.aggregator",
    "fedpeft.flare.controller",
    "fedpeft.flare.executor",
    "fedpeft.flare.filters",
    "fedpeft.flare.persistor",
    "nvflare.tool.job.job_cli",
    "nvflare.private.fed.app.simulator.simulator",
    "nvflare.private.fed.app.simulator.simulator_worker",
    "nvflare.private.fed.app.client.client_train",
    "nvflare.private.fed.app.client.worker_process",
    "nvflare.private.fed.app.server.server_train",
    "nvflare.private.fed.app.server.runner_process",
    "peft",
    "matplotlib.pyplot",
    "multiprocessing.managers",
    "psutil",
)
MAX_REQUEST, MAX_FDS = 2**20, 250
MAX_GRACE_LENGTH = (
    0.3  # seconds that FLARE's processes wait when they end, instead of 3; those that are true Pythons wait
)
ANCESTORS = "FEDPEFT_WARM_ANCESTORS"  # environment variable: processes that a true start would have as parents
FREE_FD = 400  # above those that a process is started with


def main() -> None:
    """Serve until standard input closes; go on as the requested program in a forked process."""
    listener, fresh = (socket.socket(fileno=int(fd)) for fd in sys.argv[1:])
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [place for place in sys.path[1:] if place not in inherited]
    if sys.stdin in select.select([sys.stdin, listener, fresh], [], [])[0]:
        return
    os.environ["USE_HUB_KERNELS"] = "0"  # as fedpeft does before it imports transformers, which reads it then
    _import(FRESH)
    if (server := os.fork()) == 0:
        listener.close()
        request, fds = _serve(fresh, ())
    else:
        fresh.close()
        request, fds = _serve(listener, IMPORTED)
    if request:
        _become(request, fds, places)
    elif server:
        os.waitpid(server, 0)


def _import(names) -> None:
    gc.disable()  # it would look through all that was imported, again and again
    with warnings.catch_warnings(action="ignore"):
        for name in names:
            importlib.import_module(name)
    gc.freeze()
    gc.enable()
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would not survive the fork"


def _serve(listener, names):
    children = {}  # by process id: file descriptor of its end, and the connection of who requested it
    ready = False
    with selectors.PollSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        selector.register(listener, selectors.EVENT_READ)
        while True:
            events = [(key.fileobj, key.data) for key, _ in selector.select()]
            for source, pid in events:
                if source is sys.stdin:
                    for child in children:
                        _kill(child)
                    return None, ()
                if source is listener:
                    if not ready:
                        _import(names)
                        ready = True
                    control, _ = listener.accept()
                    message, fds, *_ = socket.recv_fds(control, MAX_REQUEST, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
                    if not message:
                        control.close()
                        continue
                    if (child := os.fork()) == 0:
                        for ended, other in children.values():
                            os.close(ended)
                            other.close()
                        control.close()
                        listener.close()
                        return json.loads(message), fds
                    for fd in fds:
                        os.close(fd)
                    children[child] = os.pidfd_open(child), control
                    for file in children[child]:
                        selector.register(file, selectors.EVENT_READ, child)
                    with contextlib.suppress(OSError):
                        control.send(str(child).encode())
                elif pid in children:
                    ended, control = children[pid]
                    if source is control:
                        selector.unregister(control)
                        _kill(pid)
                    else:
                        selector.unregister(ended)
                        with contextlib.suppress(KeyError):
                            selector.unregister(control)
                        _, status = os.waitpid(pid, 0)
                        with contextlib.suppress(OSError):
                            control.send(str(os.waitstatus_to_exitcode(status)).encode())
                        os.close(ended)
                        control.close()
                        del children[pid]


def _kill(child: int) -> None:
    """End a forked process and what it has forked, which has no environment of its own to be found by."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
        os.killpg(child, signal.SIGKILL)


def _become(request, fds, places) -> None:
    """Go on as `python ARGUMENTS` would have begun, and end without taking the imports apart."""
    os.setsid()
    _take_over(request, fds)
    code = 0
    try:
        _run(request["arguments"], places)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 255)


def _take_over(request, fds) -> None:
    """Files, folder, environment, ignored signals and parents of the process that sent the request."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FREE_FD) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(moved, request["fds"], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    sys.executable = request["executable"]
    sys.modules["multiprocessing.spawn"].set_executable(sys.executable)
    if "nvflare" not in sys.modules:
        return
    if UNDRAWN in os.environ:
        leave_pictures_out()
    _end_sooner()

    import psutil

    ancestors = [*map(int, os.environ.get(ANCESTORS, "").split()), *request["parents"]]
    os.environ[ANCESTORS] = " ".join(map(str, ancestors))
    # FLARE's processes of a job end with the process that started them
    os.getppid = lambda: request["parents"][0]
    parents = psutil.Process.parents

    def with_requesters(process):
        return [*parents(process), *(psutil.Process(pid) for pid in ancestors if psutil.pid_exists(pid))]

    psutil.Process.parents = with_requesters


def _end_sooner() -> None:
    """FLARE waits at the end of each process, so that messages on their way arrive."""
    process = sys.modules["nvflare.fuel.f3.mpm"].MainProcessMonitor
    shut_down = process._start_shutdown
    process._start_shutdown = lambda grace, cleanup: shut_down(min(grace, MAX_GRACE_LENGTH), cleanup)


def _run(arguments, places) -> None:
    options = list(itertools.takewhile(lambda one: one in ("-u", "-P", "-B") or one.startswith("-W"), arguments))
    arguments = arguments[len(options) :]
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    buffering = 1 if "-u" in options or os.isatty(1) else -1
    sys.stdout = sys.__stdout__ = open(1, "w", buffering, closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    search = [os.path.abspath(place) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    kind, *rest = arguments
    beside = {"-c": "", "-m": os.getcwd()}.get(kind, os.path.dirname(os.path.abspath(kind)))
    first = [] if "-P" in options or os.environ.get("PYTHONSAFEPATH") else [beside]
    sys.path[:] = [*first, *search, *places]
    importlib.invalidate_caches()
    if kind == "-m":
        what, *rest = rest
        sys.argv = [kind, *rest]
        sys.modules.pop(what, None)
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    if kind == "-c":
        code, *rest = rest
    else:
        module.__file__ = kind
        with open(kind) as file:
            code = compile(file.read(), kind, "exec")
    sys.argv = [kind, *rest]
    exec(code, module.__dict__)


if __name__ == "__main__":
    main()

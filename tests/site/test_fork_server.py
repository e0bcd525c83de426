# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A fork server: what it forks is what a fresh Python would be, and nothing of it outlives the run."""

import importlib
import json
import os
import subprocess
import sys

import psutil
import pytest

from fedpeft.site import fork_server
from fedpeft.site.connection import ForkedProcess, start_python
from fedpeft.site.fork_server import ADDRESS, IMPORTED

MODULE = """
import json, os, sys, pathlib
state = {"environment": dict(os.environ), "folder": os.getcwd(), "arguments": len(sys.argv), "name": __name__}
state["open"] = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and
                 os.path.exists(f"/proc/self/fd/{fd}")]
os.write(int(sys.argv[1]), json.dumps(state).encode())
"""
WAITING = "import os, sys, threading; os.write(int(sys.argv[1]), b'here'); threading.Event().wait()"
OWNER = """
import os, sys
from fedpeft.site import fork_server
from fedpeft.site.connection import start_python
{start}
read, write = os.pipe()
child = start_python("waiting", write)
os.read(read, 4)
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Modules of the tests, which every Python finds."""
    folder = tmp_path / "modules"
    folder.mkdir()
    for name, code in {"sending": MODULE, "waiting": WAITING}.items():
        (folder / f"{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))


def state_of(process, read, write):
    os.close(write)
    with open(read, "rb") as pipe:
        state = json.load(pipe)
    assert process.wait(60) == 0
    return state


@pytest.mark.slow
def test_what_is_forked_sees_what_a_fresh_python_would(fork_server_name, modules, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDPEFT_OF_THIS_TEST", "of one site")
    monkeypatch.chdir(tmp_path)
    before, states = {name: value for name, value in os.environ.items() if name != ADDRESS}, []
    for name in ("", fork_server_name):
        monkeypatch.setenv(ADDRESS, name)
        read, write = os.pipe()
        states.append(state_of(start_python("sending", write), read, write))
    for state in states:
        assert len(state.pop("open")) == 1
        variables = state.pop("environment")
        assert {name: variables[name] for name in os.environ if name != ADDRESS} == before
    assert states[0] == states[1]


@pytest.mark.slow
def test_a_forked_process_holds_nothing_of_another(fork_server_name, modules, monkeypatch):
    monkeypatch.setenv(ADDRESS, fork_server_name)
    read, write = os.pipe()
    other = start_python("waiting", write)
    os.read(read, 4)
    assert other.poll() is None
    receiving, sending = os.pipe()
    assert len(state_of(start_python("sending", sending), receiving, sending)["open"]) == 1
    other.kill()
    assert other.wait(60) == -9
    os.close(read)
    os.close(write)


def test_a_server_that_has_gone_is_done_without(modules, monkeypatch):
    monkeypatch.setenv(ADDRESS, "fedpeft-gone")
    read, write = os.pipe()
    process = start_python("sending", write)
    assert isinstance(process, subprocess.Popen)
    state_of(process, read, write)


def test_another_user_s_server_gets_nothing(fork_server_name, monkeypatch):
    monkeypatch.setattr(fork_server.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError):
        ForkedProcess(fork_server_name, "sending", 0)


def test_a_process_that_has_a_server_starts_no_other(fork_server_name, monkeypatch):
    monkeypatch.setenv(ADDRESS, fork_server_name)
    assert fork_server.start() is None


@pytest.mark.slow
@pytest.mark.parametrize("start", ["server = fork_server.start()", ""])
def test_kill_9_leaves_nothing(fork_server_name, modules, monkeypatch, start):
    """Of the simulator's process, which has the server; and of a site's, which only uses it."""
    monkeypatch.setenv(ADDRESS, "" if start else fork_server_name)
    code = OWNER.format(start=start)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        forked = psutil.Process(int(owner.stdout.readline()))
        server = forked.parent()
        owner.kill()
    gone, alive = psutil.wait_procs([forked, *[server] * bool(start)], timeout=30)
    assert gone
    assert not alive
    assert server.is_running() != bool(start)


@pytest.mark.slow
def test_its_imports_start_no_thread_and_touch_no_gpu():
    """Neither would survive a fork."""
    code = f"""
import gc
gc.disable()
import importlib, sys, threading, torch
touched = []
for name in ("is_available", "device_count", "_lazy_init"):
    setattr(torch.cuda, name, lambda *_, name=name: touched.append(name))
for name in {IMPORTED}:
    importlib.import_module(name)
assert not touched, touched
assert threading.active_count() == 1
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


@pytest.mark.parametrize("name", IMPORTED)
def test_every_module_that_is_imported_before_forking_exists(name):
    importlib.import_module(name)  # the server itself leaves out what it cannot import

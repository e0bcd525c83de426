# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One workspace, real runs: a second one beside the first, the first one killed, resumed, resumed once too often."""

import hashlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
from simulator_runs import simulate, write
from warm_python import COMMAND

from fedpeft.core.workspace import seed

pytestmark = pytest.mark.simulator
ROUNDS = 12  # enough for the first run to go on while a second one starts beside it
RESUME = ("resume_from=latest",)
SIMULATE = [sys.executable, "-P", "-m", "fedpeft.cli", "simulate"]
OWN_SCRIPTS = ("random", "types", "json", "statistics", "select")  # called like modules of Python
HOLD = """
import pathlib, sys
from fedpeft.core.locks import held
with held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def digests(folder):
    """What is in a folder, but for logs, which a run that goes on writes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files if "log" not in path.name}


@pytest.fixture(scope="module")
def used(tmp_path_factory, sections):
    """A run that is killed after its first round, with a second one beside it, resumed twice."""
    folder = tmp_path_factory.mktemp("used")
    workspace = folder / "ws"
    chosen = "federation.sites=[slake, vqa-rad]", f"training.rounds={ROUNDS}"
    jobs = {name: write(folder / name, sections(*chosen, *more)) for name, more in (("job", ()), ("again", RESUME))}
    for name in OWN_SCRIPTS:
        (folder / f"{name}.py").write_text("print('a script of the user ran')\nx = 1\n")
    long = folder / ("x" * 110)
    long.mkdir()
    with subprocess.Popen(
        [*SIMULATE, str(jobs["job"]), "-t", "2", "-w", str(workspace)],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(long)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as first:
        said = ""
        while f"round 1 of {ROUNDS}" not in said:
            line = first.stdout.readline()
            assert line, said
            said += line
        configuration = digests(workspace / "local")
        beside = simulate(jobs["job"], workspace, threads=2)
        assert digests(workspace / "local") == configuration
        members = psutil.Process(first.pid).children(recursive=True)
        forked = [member for member in members if "fedpeft.site.fork_server" in member.parent().cmdline()]
        short = members[-1].environ()["TMPDIR"]
        first.kill()
        said += first.stdout.read()
        first.wait()
        resumed = simulate(jobs["again"], workspace, threads=2)
    alive = [member for member in members if member.is_running() and member.status() != psutil.STATUS_ZOMBIE]
    before = digests(workspace)
    once_more = simulate(jobs["again"], workspace, threads=2)
    same = digests(workspace) == before
    return SimpleNamespace(
        pid=first.pid,
        said=said,
        short=short,
        long=long,
        beside=beside,
        members=members,
        forked=forked,
        alive=alive,
        resumed=resumed,
        once_more=once_more,
        same=same,
    )


def test_a_second_run_names_the_process_of_the_first(used):
    assert used.beside.code == 1
    assert f"another run uses the workspace {used.beside.workspace}, process {used.pid} since" in used.beside.error
    assert "Traceback" not in used.beside.text


def test_no_script_of_the_user_is_run_whatever_it_is_called(used):
    assert "a script of the user ran" not in used.said


def test_flares_message_for_its_own_command_is_not_in_the_log(used):
    assert "deprecated" not in used.said


def test_a_temporary_folder_with_a_long_path_is_replaced_by_a_short_one_that_is_gone_afterwards(used):
    assert len(used.short) < 40 < len(str(used.long))
    assert not os.path.exists(used.short)


def test_kill_9_leaves_no_process(used):
    assert len(used.members) >= 4
    assert len(used.forked) == 2
    assert not used.alive


def test_the_killed_run_is_resumed_in_the_same_workspace(used):
    assert used.resumed.code == 0, used.resumed.text
    manifest = json.loads((used.resumed.results / "manifest.json").read_text())
    assert manifest["rounds"] == ROUNDS
    assert manifest["resumed"]["after_round"] >= 1


def test_what_the_killed_run_left_is_beside_the_workspace(used):
    (earlier,) = used.resumed.workspace.with_name("ws_runs").glob("2*-small")
    assert f"earlier  {earlier}" in used.resumed.text
    run = earlier / "server" / "simulate_job" / "fedpeft"
    assert json.loads((run / "history.json").read_text())["rounds"]
    assert "cut off" in json.loads((run / "manifest.json").read_text())["reason"]


def test_a_completed_run_that_is_resumed_keeps_its_results(used):
    assert used.once_more.code == 1
    assert f"has its results, after round {ROUNDS}: nothing is left to resume." in used.once_more.error
    assert used.same


def test_flares_own_command_ends_where_another_run_uses_the_workspace(tmp_path, sections):
    """It has wiped the workspace before anything of a job is loaded; it does not compute there."""
    job = write(tmp_path / "job", sections("federation.sites=[slake, vqa-rad]"))
    simulator = [os.environ[COMMAND], "-m", "nvflare.cli", "simulator", str(job), "-w", str(tmp_path / "ws"), "-t", "2"]
    seed(tmp_path / "ws")
    hold = [sys.executable, "-c", HOLD, str(tmp_path / "ws")]
    with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        holder.stdout.readline()
        done = subprocess.run(simulator, capture_output=True, text=True, check=False)
        holder.stdin.close()
    assert done.returncode != 0
    assert f"process {holder.pid} since" in done.stdout + done.stderr
    assert not (tmp_path / "ws" / "server" / "simulate_job" / "fedpeft").exists()

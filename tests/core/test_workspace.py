# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A simulator's workspace: which folder may be one, that one run uses it at a time, where earlier runs go."""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fedpeft import cli
from fedpeft.core import locks
from fedpeft.core.errors import FedpeftError
from fedpeft.core.locks import held, is_held_by_a_parent, runs_folder
from fedpeft.core.workspace import check_place, chosen_state, seed
from fedpeft.job.admission import MAX_SITES
from fedpeft.job.composing import compose, write_job
from fedpeft.run import simulate as simulation
from fedpeft.run.simulate import set_aside, simulate

JOB = Path(__file__).parents[2] / "jobs" / "fedpia_task1"
HOLD = """
import pathlib, subprocess, sys
from fedpeft.core.locks import held
with held(pathlib.Path(sys.argv[1])) as lock:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=sys.stdin, pass_fds=[lock])
    print(child.pid, flush=True)
    child.wait()
"""
FAMILY = """
import subprocess, sys
from fedpeft.core.processes import family
with family() as mark:
    nested = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
    last = "import os; print(os.getpid(), flush=True); import signal; signal.pause()"
    subprocess.run([sys.executable, "-c", nested, last], env=mark | {"PATH": ""}, check=True)
    sys.stdin.read()
"""


def start(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finished(workspace, rounds=1, manifest=True):
    """A workspace as the simulator leaves it."""
    seed(workspace)
    run = workspace / "server" / "simulate_job" / "fedpeft"
    run.mkdir(parents=True)
    (workspace / "slake" / "simulate_job").mkdir(parents=True)
    (run / "history.json").write_text(json.dumps({"job": "small", "rounds": [{"round": n} for n in range(rounds)]}))
    if manifest:
        (run / "manifest.json").write_text(json.dumps({"status": "completed", "job": "small"}))
    return run


def a_file(folder):
    folder.write_text("mine")


def a_kit(folder):
    seed(folder)
    (folder / "startup").mkdir()
    (folder / "startup" / "fed_client.json").touch()


def data_beside(folder):
    finished(folder)
    (folder / "scans").mkdir()
    (folder / "scans" / "1.png").touch()


def a_link_inside(folder):
    finished(folder)
    (folder / "slake2").symlink_to(folder / "slake")


@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        ("ws", a_file, "is a file"),
        ("file/ws", lambda folder: folder.parent.touch(), "cannot be used"),
        ("ws", lambda folder: (folder / ".git").mkdir(parents=True), "not a simulator workspace"),
        ("ws", a_kit, r"it holds startup/fed_client\.json"),
        ("ws", data_beside, "it holds scans"),
        ("ws", a_link_inside, "it holds slake2"),
        ("with a blank", lambda folder: None, "has a blank"),
        ("ws#1", lambda folder: None, "has a blank, a quote or the like"),
        ("it's", lambda folder: None, "has a blank, a quote or the like"),
        (".", lambda folder: None, "the current folder"),
        ("..", lambda folder: None, "the current folder"),
        (str(JOB), lambda folder: None, "is inside the other"),
        (str(JOB / "ws"), lambda folder: None, "is inside the other"),
        (str(JOB.parent), lambda folder: None, "is inside the other"),
        ("/proc/ws", lambda folder: None, "cannot be used"),
        ("x" * 300, lambda folder: None, "cannot be used"),
    ],
)
def test_a_folder_that_cannot_be_a_workspace_is_refused_in_one_sentence(
    name, make, said, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["simulate", str(JOB), "-w", name]) == 1
    sentence = capsys.readouterr().err
    assert sentence.startswith("fedpeft: ")
    assert sentence.endswith(".\n")
    assert sentence.count("\n") == 1
    assert re.search(said, sentence)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_used_workspace_an_empty_folder_and_one_that_is_not_there_are_not_refused(tmp_path):
    finished(tmp_path / "used")
    (tmp_path / "empty").mkdir()
    for name in ("used", "empty", "new"):
        check_place(tmp_path / name, JOB)


@pytest.mark.slow
def test_the_second_run_in_a_workspace_is_refused_by_the_process_of_the_first(tmp_path):
    run = finished(tmp_path / "ws")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with start(HOLD, tmp_path / "ws") as first:
        first.stdout.readline()
        said = rf"another run uses the workspace .*, process {first.pid} since .*\(kill {first.pid}\), or name another"
        with pytest.raises(FedpeftError, match=said):
            simulate(JOB, workspace=tmp_path / "ws", threads=1)
        first.communicate("\n")
    assert run.is_dir()
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_the_lock_of_a_killed_run_is_taken_over_once_its_last_process_is_gone(tmp_path, monkeypatch):
    with start(HOLD, tmp_path / "ws") as first:
        child = psutil.Process(int(first.stdout.readline()))
        first.kill()
        first.wait()
        monkeypatch.setattr(locks, "SECONDS_FOR_KILLED_RUN", 0)
        with pytest.raises(FedpeftError, match="processes of a run that was killed still use the workspace"):
            locks.take(tmp_path / "ws")
        monkeypatch.setattr(locks.time, "sleep", lambda _: child.is_running() and child.kill())
        monkeypatch.setattr(locks, "SECONDS_FOR_KILLED_RUN", float("inf"))
        with held(tmp_path / "ws"):
            assert json.loads((runs_folder(tmp_path / "ws") / ".lock").read_text())["pid"] == os.getpid()


@pytest.mark.slow
def test_a_job_knows_the_lock_of_the_run_that_started_it(tmp_path):
    ask = "import pathlib, sys; from fedpeft.core.locks import is_held_by_a_parent as ours; "
    ask += "print(ours(pathlib.Path(sys.argv[1])))"

    def answer():
        return subprocess.run(
            [sys.executable, "-c", ask, tmp_path / "ws"], capture_output=True, text=True
        ).stdout.strip()

    assert answer() == "False"
    with held(tmp_path / "ws"):
        assert answer() == "True"
        assert not is_held_by_a_parent(tmp_path / "ws")
    assert answer() == "False"


@pytest.mark.slow
@pytest.mark.parametrize("end", [psutil.Process.kill, psutil.Process.terminate])
def test_a_family_ends_with_the_process_that_started_it(end):
    """Also a member in a session of its own whose parent is gone."""
    with start(FAMILY) as process:
        member = psutil.Process(int(process.stdout.readline()))
        assert member.is_running()
        end(psutil.Process(process.pid))
        process.wait()
        member.wait()


def test_the_run_before_is_moved_aside_in_its_own_layout(tmp_path, capsys):
    run = finished(tmp_path / "ws")
    os.utime(run / "manifest.json", (1.8e9, 1.8e9))
    moved = set_aside(tmp_path / "ws")
    assert moved.parent == tmp_path / "ws_runs"
    assert moved.name.startswith("2027")
    assert moved.name.endswith("-small")
    assert sorted(path.name for path in (tmp_path / "ws").iterdir()) == ["local"]
    assert (moved / "slake" / "simulate_job").is_dir()
    assert cli.main(["status", str(moved)]) == 0
    assert cli.main(["status", str(moved.parent)]) == 1
    assert f"holds 1 earlier run, the newest is {moved}" in capsys.readouterr().err
    os.utime(finished(tmp_path / "ws") / "manifest.json", (1.8e9, 1.8e9))
    assert set_aside(tmp_path / "ws").name == f"{moved.name}-2"
    assert set_aside(tmp_path / "ws") is None


def test_a_run_that_was_cut_off_says_so_once_it_is_moved_aside(tmp_path, capsys):
    finished(tmp_path / "ws", rounds=2, manifest=False)
    moved = set_aside(tmp_path / "ws")
    assert cli.main(["verify", str(moved)]) == 1
    assert "the run was cut off" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../../etc", "", 7, "a" * 400, "\x1b[31m"])
def test_a_history_cannot_choose_where_its_run_goes(name, tmp_path):
    run = finished(tmp_path / "ws", manifest=False)
    (run / "history.json").write_text(json.dumps({"job": name, "rounds": []}))
    assert set_aside(tmp_path / "ws").parent == tmp_path / "ws_runs"


@pytest.mark.parametrize(
    ("resume_from", "said"),
    [("latest", "there is no checkpoint"), ("other-1", "there is no checkpoint"), ("../../etc", "it must be 'latest'")],
)
def test_what_cannot_be_resumed_leaves_the_results_where_they_are(resume_from, said, tmp_path, sections):
    chosen = sections()
    chosen["federation"]["resume_from"] = resume_from
    write_job(tmp_path / "job", "small", chosen)
    finished(tmp_path / "ws")
    before = {path: path.read_bytes() for path in (tmp_path / "ws").rglob("*") if path.is_file()}
    with pytest.raises(FedpeftError, match=said):
        simulate(tmp_path / "job", workspace=tmp_path / "ws", threads=1)
    assert {path: path.read_bytes() for path in (tmp_path / "ws").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["local", "startup", "simulator_server"])
def test_a_site_named_as_a_folder_of_every_workspace_is_refused(name, tmp_path, sections):
    write_job(tmp_path / "job", "small", sections(f"federation.sites=[slake, {name}]"))
    with pytest.raises(FedpeftError, match=f"federation.sites names '{name}', which is a folder of every workspace"):
        simulate(tmp_path / "job", workspace=tmp_path / "ws", threads=1)
    assert not (tmp_path / "ws").exists()


def test_flares_simulator_takes_as_many_sites_as_a_job_may_have(tmp_path, monkeypatch):
    """Without -m it takes 100."""
    commands = []

    def started(command, **_):
        commands.append(command)
        return SimpleNamespace(poll=lambda: 0, wait=lambda: 0)

    monkeypatch.setattr(simulation, "subprocess", SimpleNamespace(Popen=started))
    with held(tmp_path / "ws") as lock:
        assert simulation._run_simulator(tmp_path / "job", tmp_path / "ws", 2, tmp_path / "manifest.json", lock) == 0
    (command,) = commands
    assert command[command.index("-m", command.index(simulation.SIMULATOR)) + 1] == str(MAX_SITES)
    assert MAX_SITES > 100


def test_a_signal_that_only_a_main_thread_can_take_is_left_alone_in_others():
    def handler():
        with simulation._ended_by_signal():
            return signal.getsignal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    assert handler() != before
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(handler).result() == before
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
def test_an_unexpected_error_of_the_pools_server_is_in_its_log_and_in_the_manifest(tmp_path, sections, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("of the server")

    monkeypatch.setattr("fedpeft.run.pool._workers", lambda *_: nullcontext([]))
    monkeypatch.setattr("fedpeft.server.job_run.JobRun._handshake", fail)
    write_job(tmp_path / "job", "small", sections("federation.sites=[slake, vqa-rad]", "training.rounds=1"))
    reason = "ZeroDivisionError on the server: of the server; its log has the traceback."
    with pytest.raises(FedpeftError, match=reason):
        simulate(tmp_path / "job", workspace=tmp_path / "ws", threads=1, engine="pool")
    manifest = json.loads((tmp_path / "ws" / "server" / "simulate_job" / "fedpeft" / "manifest.json").read_text())
    assert (manifest["status"], manifest["reason"]) == ("failed", reason)
    log = (tmp_path / "ws" / "server" / "log.txt").read_text()
    assert "Traceback" in log
    assert "ZeroDivisionError: of the server" in log


@pytest.mark.slow
def test_a_run_that_ends_on_a_full_disk_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(simulation, "_run_simulator", lambda *_: 2)
    monkeypatch.setattr(simulation, "ROOM", float("inf"))
    with pytest.raises(FedpeftError, match=r"without a manifest\n.*\nThe disk of .* is full: make room\."):
        simulate(JOB, workspace=tmp_path / "ws", threads=1)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["flare", "pool"])
@pytest.mark.parametrize("count", [19, 20])
def test_the_pool_is_proposed_where_flare_would_start_many_processes(count, engine, tmp_path, capsys, monkeypatch):
    names = ",".join(f"client-{number}" for number in range(1, count + 1))
    chosen = compose(
        JOB.parents[1] / "app_configs", "fedpia_task4", [f"data.parts={count}", f"federation.sites=[{names}]"]
    )
    write_job(tmp_path / "job", "small", chosen)
    monkeypatch.setattr(simulation, "held", lambda workspace: pytest.fail("it starts"))
    with pytest.raises(pytest.fail.Exception, match="it starts"):
        simulate(tmp_path / "job", workspace=tmp_path / "ws", threads=1, engine=engine)
    assert ("--engine pool" in capsys.readouterr().out) == (count == 20 and engine == "flare")


def test_the_pool_leaves_the_file_of_the_sites_beside_a_run_and_nothing_else_of_a_users_job(tmp_path, monkeypatch):
    config = tmp_path / "job" / "app" / "config"
    config.mkdir(parents=True)
    (config / "config_fed_client.json").write_text("{}")
    (config / "dangling").symlink_to("nowhere")
    for path in (config / "config_fed_client.json", config):
        path.chmod(path.stat().st_mode & ~0o222)
    monkeypatch.setattr("fedpeft.run.pool.run_pool", lambda *_, **__: None)
    for _ in range(2):  # the second in the workspace that the first one left
        simulation._run_pool(("small", {}, {}), tmp_path / "job", ["slake"], tmp_path / "ws", 1)
    (left,) = [path for path in (tmp_path / "ws").rglob("*") if path.is_file()]
    assert left == tmp_path / "ws" / "server" / "simulate_job" / "app_server" / "config" / "config_fed_client.json"
    assert left.stat().st_mode & 0o200


@pytest.mark.parametrize(
    ("chosen", "found"), [("", None), (".", Path()), ("/srv/state", Path("/srv/state")), ("~", Path.home())]
)
def test_the_folder_of_states_is_the_one_that_is_named(monkeypatch, chosen, found):
    monkeypatch.setenv("FEDPEFT_STATE", chosen)
    assert chosen_state() == found


def test_the_home_of_nobody_is_no_folder_of_states(monkeypatch):
    monkeypatch.setenv("FEDPEFT_STATE", "~nobody-of-this-name/x")
    with pytest.raises(FedpeftError, match="of an unknown user"):
        chosen_state()

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the terminal shows, once and until the end."""

import io
import json

import pytest
from rich.console import Console

from fedpeft import cli
from fedpeft.core.errors import FedpeftError
from fedpeft.core.text import duration
from fedpeft.report.status import Progress, follow, run_folder, show, wait_for_run
from fedpeft.report.status.show import figures

RUNNING = Progress(job="small", round=2, rounds=4, mean=0.5, seconds=8.0, pace=8.0, ago=3.0)
COMPLETED = Progress(job="small", state="completed", round=4, rounds=4, mean=0.75, seconds=8.0)
FAILED = Progress(job="small", state="failed", round=2, rounds=4, reason="round 3 ended with too few valid replies")


def shown(progress, *, width=120):
    console = Console(file=io.StringIO(), width=width)
    console.print(show(progress, now=0), soft_wrap=True)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (Progress(), ["no round finished yet", "running"]),
        (Progress(state="submitted", job="small"), ["small", "submitted"]),
        (Progress(rounds=4), ["0 of 4 rounds"]),
        (Progress(round=3), ["3 rounds"]),
        (RUNNING, ["2 of 4 rounds", "mean accuracy 50.0 %", "last round 8.0 s, 3.0 s ago", "13.0 s left"]),
        (COMPLETED, ["4 of 4 rounds", "completed", "mean accuracy 75.0 %; last round 8.0 s\n"]),
        (FAILED, ["failed", "2 of 4 rounds"]),
        (Progress(state="completed", reason="look there."), ["completed", "look there."]),
        (Progress(rejected=("[red]head[/], round 1: [bold]late",)), ["rejected: [red]head[/], round 1: [bold]late"]),
    ],
)
def test_the_progress_is_shown_with_its_figures(progress, expected):
    text = shown(progress)
    assert all(part in text for part in expected), text


def test_no_end_is_estimated_without_a_pace():
    assert "left" not in figures(Progress(round=1, rounds=4, mean=0.5))


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, "0.0 s"), (8.24, "8.2 s"), (61, "1 min"), (3599, "1 h 00 min"), (14700, "4 h 05 min")]
)
def test_a_duration_is_written_in_its_largest_units(seconds, expected):
    assert duration(seconds) == expected


@pytest.mark.parametrize("terminal", [False, True])
def test_following_ends_with_the_run(terminal):
    seen = iter([Progress(job="small"), RUNNING, RUNNING, COMPLETED])
    pauses = []
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    assert follow(lambda: next(seen), console=console, pause=lambda: pauses.append(1)) == COMPLETED
    assert len(pauses) == 3
    assert "4 of 4 rounds" in console.file.getvalue()
    if not terminal:
        assert console.file.getvalue().count("2 of 4 rounds") == 1


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_that_fails_is_an_error(terminal):
    seen = iter([RUNNING, FAILED])
    console = Console(file=io.StringIO(), force_terminal=terminal)
    with pytest.raises(FedpeftError, match="small failed: round 3 ended"):
        follow(lambda: next(seen), console=console, pause=lambda: None)


def test_one_look_does_not_wait():
    assert follow(lambda: RUNNING, console=Console(file=io.StringIO()), until_end=False) == RUNNING


def test_the_status_command_prints_a_run_and_ends_with_1_where_it_failed(tmp_path, capsys, monkeypatch):
    (tmp_path / "history.json").write_text(json.dumps({"job": "small", "rounds": []}))
    assert cli.main(["status", str(tmp_path)]) == 0
    assert "small" in capsys.readouterr().out
    (tmp_path / "manifest.json").write_text(json.dumps({"status": "failed", "reason": "no site answered."}))
    assert cli.main(["status", str(tmp_path), "--follow"]) == 1
    assert "no site answered." in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert cli.main(["status"]) == 1
    assert "simulator_workspace is not a folder" in capsys.readouterr().err


def test_follow_waits_for_a_run_that_is_about_to_begin(tmp_path):
    run = tmp_path / "ws" / "server" / "simulate_job" / "fedpeft"
    pauses = []

    def begin_at_the_third_look():
        pauses.append(1)
        if len(pauses) == 2:
            run.mkdir(parents=True)
            (run / "history.json").write_text("{}")

    console = Console(file=io.StringIO())
    assert wait_for_run(tmp_path / "ws", console=console, pause=begin_at_the_third_look) == run
    assert console.file.getvalue().split("\n") == [f"waiting for a run in {tmp_path / 'ws'}; Ctrl-C ends this", ""]


def test_the_earlier_runs_of_a_workspace_are_named(tmp_path):
    for name in ("20260101-120000-small", "20260102-120000-small"):
        (tmp_path / name / "server" / "simulate_job" / "fedpeft").mkdir(parents=True)
    with pytest.raises(FedpeftError, match=r"holds 2 earlier runs, the newest is .*/20260102-120000-small: name one"):
        run_folder(tmp_path)

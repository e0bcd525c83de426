# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a run's folder says at every stage of its life, where the folder is, and what the terminal shows of it."""

import io
import json
import os
from dataclasses import asdict

import pytest

from fedpeft import cli
from fedpeft.core import locks
from fedpeft.core.console import Console
from fedpeft.core.errors import FedpeftError
from fedpeft.core.locks import StateLock, held
from fedpeft.core.text import duration
from fedpeft.report.status import Progress, figures, follow, read_progress, run_folder, show, wait_for_run


def history(rounds=3, *, of=10, rejected=None):
    """A history of so many finished rounds, each of 8 s but the first, which took 60."""
    sites = {"slake": {"overall": 0.5}, "vqa-rad": {"overall": 0.7}, "head": {"overall": None}}
    made = [
        {
            "round": number,
            "sites": sites,
            "rejected": (rejected or {}).get(number, {}),
            "seconds": 60 if number == 1 else 8,
        }
        for number in range(1, rounds + 1)
    ]
    return {"job": "small", "settings": {"training": {"rounds": of}}, "rounds": made}


def write(folder, *, history=None, manifest=None, at=1000):
    for name, content in (("history.json", history), ("manifest.json", manifest)):
        if content is not None:
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
            os.utime(folder / name, (at, at))
    return folder


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {"state": "running", "round": 0, "rounds": None, "left": None}),
        ({"history": history(0)}, {"job": "small", "round": 0, "rounds": 10, "mean": None, "left": None}),
        ({"history": history(1)}, {"round": 1, "mean": 0.6, "seconds": 60, "ago": 5.0, "left": 9 * 60 - 5.0}),
        ({"history": history(5)}, {"round": 5, "seconds": 8, "pace": 8.0, "left": 35.0}),
        ({"history": history(10)}, {"round": 10, "state": "running", "left": 0.0}),
        ({"history": history(10), "manifest": {"status": "completed"}}, {"state": "completed", "left": None}),
        (
            {"history": history(2), "manifest": {"status": "failed", "reason": "too few replies"}},
            {"state": "failed", "reason": "too few replies", "round": 2},
        ),
        ({"manifest": {"status": "failed", "reason": "no.", "job": "x"}}, {"state": "failed", "job": "x", "round": 0}),
        ({"history": {"rounds": [{"round": 1, "sites": {}}]}}, {"round": 1, "rounds": None, "pace": None, "job": ""}),
    ],
)
def test_the_progress_of_a_run_is_read_from_its_files(files, expected, tmp_path):
    progress = read_progress(write(tmp_path, **files), now=1005)
    assert {name: getattr(progress, name) for name in expected} == pytest.approx(expected)


def test_rejected_replies_are_named(tmp_path):
    rejected = {1: {"head": "NaN in layer 3"}, 2: {"head": "late", "slake": "late"}}
    progress = read_progress(write(tmp_path, history=history(3, rejected=rejected)))
    assert progress.rejected == ("head, rounds 1, 2: late", "slake, round 2: late")


def test_means_of_fewer_sites_say_of_how_many(tmp_path):
    made = history(2)  # one of its three sites tells no figure
    assert read_progress(write(tmp_path, history=made)).of_sites == {}
    made["rounds"][1]["sites"] = {"slake": {"overall": 0.5}}
    progress = read_progress(write(tmp_path, history=made))
    assert progress.figures == "accuracy 50.0 % (1 of 2 sites)"
    made["rounds"][1]["rejected"] = {"never": "late", "head": "late"}
    assert read_progress(write(tmp_path, history=made)).of_sites == {"accuracy": "1 of 3 sites"}
    made["metrics"] = {"never": "macro_f1"}
    assert read_progress(write(tmp_path, history=made)).of_sites == {
        "accuracy": "1 of 2 sites",
        "macro_f1": "none of 1 site",
    }
    said = read_progress(write(tmp_path, history=made)).figures
    assert said == "accuracy 50.0 % (1 of 2 sites), macro-F1 not measured (none of 1 site)"
    made["rounds"][1]["sites"] = {}
    said = read_progress(write(tmp_path, history=made)).figures
    assert said == "accuracy not measured (none of 2 sites), macro-F1 not measured (none of 1 site)"


def test_a_metric_of_another_version_is_left_out():
    told = {"means": {"accuracy": 0.5, "auc": 0.9}, "of_sites": {"auc": "1 of 2 sites"}}
    progress = Progress.from_json({**asdict(Progress(job="small", state="running", round=1)), **told})
    assert progress.figures == "accuracy 50.0 %"


def test_sites_that_are_no_better_than_a_constant_answer_are_named_and_shown(tmp_path):
    made = history(4)
    for one in made["rounds"]:
        one["sites"] = {site: {**values, "below_constant": None} for site, values in one["sites"].items()}
    made["rounds"][2]["sites"]["slake"]["below_constant"] = 1.0  # it has got better since
    made["rounds"][2]["sites"]["head"]["below_constant"] = 1.0  # and this one has not been there since
    made["rounds"][3]["sites"]["vqa-rad"]["below_constant"] = 1.0
    del made["rounds"][3]["sites"]["head"]
    progress = read_progress(write(tmp_path, history=made))
    more = "no better than a constant answer for 3 rounds: set another training.learning_rate, or train longer"
    assert sorted(progress.not_learning) == [f"head: {more}", f"vqa-rad: {more}"]
    console = Console(file=io.StringIO(), width=200)
    console.print(show(progress))
    assert console.file.getvalue().count("no better than a constant answer") == 2


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("history", "{", "cannot be read as JSON"),
        ("history", "[]", "must hold a JSON object, it holds list"),
        ("history", '{"rounds": 3}', "holds no run that can be read"),
        ("history", '{"rounds": [{"sites": {"a": 1}}]}', "holds no run that can be read"),
        ("history", '{"rounds": [], "settings": []}', "holds no run that can be read"),
        ("history", '{"rounds": [], "settings": {"training": {"rounds": "a"}}}', "'rounds' is 'a' but must be"),
        ("history", "[" * 100_000, "nested too deeply"),
        ("history", f'{{"rounds": [{{"seconds": {"9" * 401}}}]}}', "more than 19 digits"),
        ("manifest", '{"status": "sleeping"}', "must be completed or failed"),
        ("manifest", "", "cannot be read as JSON"),
    ],
)
def test_damaged_files_are_named(file, content, message, tmp_path):
    with pytest.raises(FedpeftError, match=message):
        read_progress(write(tmp_path, **{file: content}))


def test_progress_can_be_sent_as_json(tmp_path):
    from dataclasses import asdict

    progress = read_progress(write(tmp_path, history=history(3, rejected={1: {"head": "late"}})))
    decoded = json.loads(json.dumps({**asdict(progress), "of a newer version": 1}))
    assert Progress.from_json(decoded) == progress


@pytest.mark.parametrize("place", ["", "fedpeft", "server/simulate_job/fedpeft", "workspace/fedpeft"])
@pytest.mark.parametrize("file", ["history.json", "manifest.json"])
def test_a_run_is_found(place, file, tmp_path):
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / place / file).write_text("{}")
    assert run_folder(tmp_path) == tmp_path / place


def test_a_workspace_may_hold_no_run_yet(tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "resources.json").write_text("{}")
    assert read_progress(run_folder(tmp_path)) == Progress(state="not running")


@pytest.mark.parametrize(("name", "message"), [("none", "is not a folder"), ("", "holds no run")])
def test_what_is_not_a_run_is_refused(name, message, tmp_path):
    with pytest.raises(FedpeftError, match=message):
        run_folder(tmp_path / name)


SIMULATED = "server/simulate_job/fedpeft"


def simulated(folder, **files):
    run = folder / SIMULATED
    run.mkdir(parents=True)
    return write(run, **files)


def test_a_simulated_run_runs_as_long_as_its_workspace_is_locked(tmp_path):
    workspace = tmp_path / "ws"
    with held(workspace):
        assert read_progress(workspace / SIMULATED).state == "running"  # before its folder is made
        run = simulated(workspace, history=history(2))
        assert read_progress(run).state == "running"
    progress = read_progress(run)
    assert (progress.state, progress.round) == ("failed", 2)
    assert progress.reason == "the run was cut off: its processes were ended from outside."
    write(run, manifest={"status": "completed"})
    assert read_progress(run).state == "completed"


def test_a_run_in_a_consortium_runs_as_long_as_its_folder_is_locked(tmp_path):
    lock = StateLock()
    lock.take(write(tmp_path, history=history(2)), "job-1")
    assert read_progress(tmp_path).state == "running"
    lock.release()
    assert read_progress(tmp_path).state == "failed"


def test_a_workspace_whose_run_ended_before_it_had_a_folder_is_not_running(tmp_path):
    with held(tmp_path / "ws"):
        pass
    assert read_progress(tmp_path / "ws" / SIMULATED).state == "not running"


@pytest.mark.parametrize("owner", [None, {"pid": 1, "host": "another machine", "job": "j"}])
def test_where_no_lock_can_be_asked_a_long_silence_is_said(owner, tmp_path):
    write(tmp_path, history=history(5))
    if owner:
        (tmp_path / "in-use.lock").write_text(json.dumps(owner))
    assert (read_progress(tmp_path, now=1000 + 600).state, read_progress(tmp_path, now=1600).reason) == ("running", "")
    silent = read_progress(tmp_path, now=1000 + 7200)
    assert silent.state == "running"
    assert silent.reason.startswith("no sign of life since, and this machine cannot see")


def test_a_run_that_ends_between_two_looks_is_not_called_cut_off(tmp_path, monkeypatch):
    run = write(tmp_path, history=history(2))

    def ends(_):
        write(run, manifest={"status": "completed"})
        return False

    monkeypatch.setattr(locks, "is_known_to_be_held", ends)
    assert read_progress(run).state == "completed"


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


def test_follow_does_not_wait_where_no_run_will_ever_be(tmp_path):
    (tmp_path / "history.json").touch()
    (tmp_path / "runs" / "20260101-120000-small" / "server" / "simulate_job" / "fedpeft").mkdir(parents=True)
    for place, sentence in ((tmp_path / "history.json", "is not a folder"), (tmp_path / "runs", "holds 1 earlier run")):
        with pytest.raises(FedpeftError, match=sentence):
            wait_for_run(place, pause=lambda: pytest.fail("it waits"))


def test_the_earlier_runs_of_a_workspace_are_named(tmp_path):
    for name in ("20260101-120000-small", "20260102-120000-small"):
        (tmp_path / name / "server" / "simulate_job" / "fedpeft").mkdir(parents=True)
    with pytest.raises(FedpeftError, match=r"holds 2 earlier runs, the newest is .*/20260102-120000-small: name one"):
        run_folder(tmp_path)


def test_an_end_in_millions_of_years_has_no_date():
    progress = Progress(state="running", round=1, rounds=10**15, seconds=1e9, pace=1e9, ago=0.0)
    assert figures(progress).endswith("left, more than ten years")

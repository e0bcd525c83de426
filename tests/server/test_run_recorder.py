# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from harness import introduction

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.files import MAX_BYTES
from fedpeft.core.metrics import ACCURACY, MACRO_F1
from fedpeft.core.settings import MAX_ROUNDS
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.types import METRICS, TrainReply
from fedpeft.report.history import HistoryError
from fedpeft.report.history_reader import parse, verify
from fedpeft.report.status import figures, read_progress
from fedpeft.report.wording import alignment_of
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.server import run_recorder
from fedpeft.server.planner import Assignment
from fedpeft.server.run_recorder import RunRecorder


def reply(attempts=1):
    metrics = dict.fromkeys(METRICS, 0.5)
    return TrainReply(
        round=1, samples=5, metrics=metrics, scores=[], seconds=1.0, problem="", attempts=attempts, state={}
    )


@pytest.mark.parametrize(
    ("accepted", "rejected", "expected"),
    [
        ({"north": reply(), "south": reply()}, {}, []),
        ({"north": reply(), "south": reply(2)}, {}, [("south", "its training was begun 2 times")]),
        ({"north": reply()}, {"south": "site south sent NaN"}, [("south", "site south sent NaN")]),
    ],
)
def test_the_manifest_names_site_and_round_of_every_fault(tmp_path, accepted, rejected, expected):
    record = RunRecorder(tmp_path, job="test")
    record.add_round(1, {"north": reply(), "south": reply()}, {}, {}, seconds=1.0)
    record.add_round(2, accepted, rejected, {}, seconds=1.0)
    record.fail("enough")
    faults = json.loads((tmp_path / "manifest.json").read_text())["faults"]
    assert [(fault["site"], fault["what"].split(";")[0]) for fault in faults] == expected
    assert {fault["round"] for fault in faults} <= {2}
    sites = json.loads((tmp_path / "history.json").read_text())["rounds"][1]["sites"]
    assert {site: entry["attempts"] for site, entry in sites.items()} == {s: r.attempts for s, r in accepted.items()}


@pytest.mark.parametrize("full", [False, True])
def test_a_failed_job_has_its_manifest_before_its_tracker_ends_and_the_tracker_always_ends(tmp_path, monkeypatch, full):
    record = RunRecorder(tmp_path, job="test")
    file, closed = tmp_path / "manifest.json", []

    def close(completed):
        closed.append((completed, file.exists()))
        (tmp_path / "of the tracker").touch()

    record.tracking = SimpleNamespace(close=close)
    if full:
        monkeypatch.setattr(run_recorder, "write_json", Mock(side_effect=LocalError("the disk is full")))
    record.fail("enough")
    assert closed == [(False, not full)]
    if not full:
        assert "of the tracker" in json.loads(file.read_text())["files"]


def test_the_manifest_of_a_resumed_job_has_faults_and_seconds_of_the_rounds_before(tmp_path):
    first = RunRecorder(tmp_path / "first", job="test")
    first.add_round(1, {"north": reply(2)}, {"south": "site south sent NaN"}, {}, seconds=1000.0)
    before = SimpleNamespace(history=first.history, round=1)
    second = RunRecorder(tmp_path / "second", job="test")
    second.record_lineage("one", before)
    second.add_round(2, {"north": reply()}, {"south": "site south is away"}, {}, seconds=1.0)
    second.fail("enough")
    made = json.loads((tmp_path / "second" / "manifest.json").read_text())
    begun = "its training was begun 2 times; its own log says why"
    assert [(one["round"], one["site"], one["what"]) for one in made["faults"]] == [
        (1, "north", begun),
        (1, "south", "site south sent NaN"),
        (2, "south", "site south is away"),
    ]
    assert 1000 <= made["seconds"] < 1100


@pytest.mark.parametrize("name", ["procedural", "tiny"])
@pytest.mark.parametrize("announced", [True, False])
def test_the_history_says_what_one_of_the_sites_announced(tmp_path, name, announced):
    record = RunRecorder(tmp_path, job="test")
    neither = {"procedural": False, "tiny": False}
    sites = {"north": introduction("north", **neither), "south": introduction("south", **neither | {name: announced})}
    record.record_handshake(MethodSettings(), TrainingSettings(rounds=1), sites, problems={})
    history = json.loads((tmp_path / "history.json").read_text())
    assert history[name] is announced
    assert ("(procedural)" in history["source"]) == (announced and name == "procedural")


def test_a_resumed_job_keeps_what_its_history_says_of_a_site_that_is_away(tmp_path):
    """Its metric and baseline belong to the finished rounds, whose means must not change."""
    settings = MethodSettings(), TrainingSettings(rounds=2)
    of_south = {"metric": MACRO_F1, "tiny": True, "procedural": True, "dataset": "nih_cxr14"}
    sites = {"north": introduction("north", procedural=False), "south": introduction("south", **of_south)}
    first = RunRecorder(tmp_path / "first", job="test")
    first.record_handshake(*settings, sites, problems={})
    first.add_round(1, {"north": reply(), "south": reply()}, {}, {}, seconds=1.0)
    before = SimpleNamespace(history=first.history, round=1)
    second = RunRecorder(tmp_path / "second", job="test")
    second.record_lineage("one", before)
    second.record_handshake(*settings, {"north": sites["north"]}, problems={"south": "is away"})
    assert {name: second.history[name] for name in first.history} == first.history
    third = RunRecorder(tmp_path / "third", job="test")
    third.record_lineage("one", before)
    third.record_handshake(*settings, sites | {"west": introduction("west")}, problems={})
    real = RunRecorder(tmp_path / "real", job="test")
    real.record_lineage("one", SimpleNamespace(history=first.history | {"tiny": False, "procedural": False}, round=1))
    east = introduction("east", tiny=True, procedural=True, dataset="phantom", backbone="tiny-vilt")
    real.record_handshake(*settings, {"north": sites["north"], "east": east}, problems={})
    assert real.history["tiny"]
    assert real.history["procedural"]
    assert all(name in real.history["source"] for name in ("nih_cxr14", "phantom", "(procedural)", "tiny-vilt"))
    assert third.history["metrics"] == {"north": ACCURACY, "south": MACRO_F1, "west": ACCURACY}


def test_the_line_of_a_round_has_a_mean_for_each_metric(tmp_path):
    record = RunRecorder(tmp_path, job="test")
    sites = {"north": introduction("north"), "south": introduction("south", metric=MACRO_F1)}
    record.record_handshake(MethodSettings(), TrainingSettings(rounds=2), sites, problems={})
    south = dataclasses.replace(reply(), metrics=reply().metrics | {"overall": 0.2})
    record.add_round(1, {"north": reply(), "south": south}, {}, {}, seconds=1.0)
    assert record.progress(1, 2).startswith("round 1 of 2: mean accuracy 50.0 %, macro-F1 20.0 %, ")
    progress = read_progress(tmp_path)
    assert (progress.means, progress.mean) == ({ACCURACY: 0.5, MACRO_F1: 0.2}, None)
    assert figures(progress).startswith("mean accuracy 50.0 %, macro-F1 20.0 %; ")


@pytest.mark.slow
def test_a_long_run_gets_its_report_and_is_read_by_every_command(tmp_path, capsys):
    record = RunRecorder(tmp_path, job="test")
    record.record_handshake(MethodSettings(), TrainingSettings(rounds=1), {"north": introduction("north")}, {})
    record.add_round(1, {"north": reply()}, {}, {}, seconds=1.0)
    with (tmp_path / "history.json").open("a") as stream:
        stream.write(" " * MAX_BYTES)
    record.complete()
    assert "north" in (tmp_path / "report" / "tables.md").read_text()
    assert verify(tmp_path)["status"] == read_progress(tmp_path).state == "completed"


@pytest.mark.slow
def test_the_longest_run_that_a_job_may_ask_for_can_be_read():
    entries = [
        {"round": n, "sites": {"north": dict.fromkeys(("overall", "open", "closed"))}} for n in range(1, MAX_ROUNDS + 1)
    ]
    about = {"job": "a", "method": "b", "source": "c", "procedural": True, "tiny": True}
    history = parse({**about, "rounds": entries}, origin="history.json")
    assert history.rounds[-1].round == TrainingSettings(rounds=MAX_ROUNDS).rounds
    with pytest.raises(FedpeftError, match="rounds is 10001, it must be at most 10,000"):
        TrainingSettings(rounds=MAX_ROUNDS + 1)


def begun(folder, **schedule):
    record = RunRecorder(folder, job="test")
    sites = {name: introduction(name) for name in ("north", "south")}
    record.record_handshake(MethodSettings(), TrainingSettings(rounds=1), sites, {}, ScheduleSettings(**schedule))
    return record


@pytest.mark.parametrize(
    ("schedule", "kept"),
    [
        ({}, None),
        ({"budget": 2, "every": 3}, None),
        ({"joins": {"south": 3}}, {"joins": {"south": 3}}),
        ({"clients_per_round": 1}, {"clients_per_round": 1}),
        ({"solver": "own", "budget": 1}, {"solver": "own", "budget": 1, "clients_per_round": 0, "joins": {}}),
    ],
    ids=["nothing", "nothing that acts", "a site that joins", "drawn sites", "layers"],
)
def test_the_history_has_what_acts_of_the_schedule(tmp_path, schedule, kept):
    begun(tmp_path, **schedule)
    written = json.loads((tmp_path / "history.json").read_text())["settings"].get("schedule")
    if schedule.get("solver"):
        assert kept.items() <= written.items()
        assert len(written) == len(dataclasses.fields(ScheduleSettings))
    else:
        assert written == kept


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ({}, "0 of 10 places moved: sites that start from one adapter stay aligned"),
        ({"joins": {"south": 1}}, "0 of 10 places moved"),
    ],
)
def test_a_run_with_a_site_that_joins_does_not_say_that_all_started_alike(tmp_path, schedule, sentence):
    record = begun(tmp_path, **schedule)
    report = {"sites": {site: {} for site in ("north", "south")}}
    report["decisions"] = {site: {"moved": 0, "stayed": 5, "held": 0} for site in report["sites"]}
    record.add_round(1, {"north": reply(), "south": reply()}, {}, report, seconds=1.0)
    assert alignment_of(parse(record.history, origin="h")).sentence() == sentence


DECISIONS = {"north": {"moved": 2, "stayed": 3, "held": 0}, "south": {"moved": 0, "stayed": 5, "held": 1}}


@pytest.mark.parametrize(
    ("report", "number", "after"),
    [
        ({}, 2, "; about 2 min left"),
        (
            {"decisions": DECISIONS},
            2,
            "; about 2 min left; 2 of 10 places moved",
        ),
        (
            {"decisions": {"north": {"moved": 0, "stayed": 0, "held": 0}}},
            5,
            "",
        ),
    ],
    ids=["averaged", "aligned", "unequal widths, the last"],
)
def test_a_rounds_line_says_the_time_left_and_what_the_alignment_moved(tmp_path, report, number, after):
    record = RunRecorder(tmp_path, job="test")
    for one in range(1, number + 1):
        record.add_round(one, {"north": reply(), "south": reply()}, {}, report, seconds=40.0)
    assert record.progress(number, 5) == f"round {number} of 5: mean accuracy 50.0 %, 40.0 s{after}"


def test_a_site_without_a_reply_trained_no_layers(tmp_path):
    record = RunRecorder(tmp_path, job="test")
    layers = {"north": [0, 2], "south": [1], "west": []}
    plan = Assignment(numbers=[0, 1, 2], layers=layers, scores={}, importance=None, variance=0.0)
    record.add_round(1, {"north": reply(), "west": reply()}, {"south": "it was away."}, {}, plan, seconds=1.0)
    assert "north trained layers 0, 2; west trained no layer" in record.progress(1, 2)
    assert "south" not in record.progress(1, 2)


@pytest.mark.parametrize("error", [HistoryError("history.json is too large"), OSError(28, "no space left")])
@pytest.mark.parametrize("name", ["render", "show"])
def test_a_job_whose_report_cannot_be_written_has_completed_all_the_same(name, error, tmp_path, monkeypatch):
    record = RunRecorder(tmp_path, job="test")

    def fail(*_, **__):
        raise error

    monkeypatch.setattr("fedpeft.report.render", lambda *_: {})
    monkeypatch.setattr("fedpeft.report.show", lambda *_, **__: None)
    monkeypatch.setattr(f"fedpeft.report.{name}", fail)
    why = str(error) if isinstance(error, HistoryError) else "the log says why"
    report = [f"no report: {why}; `fedpeft report {tmp_path}` writes it again"] * (name == "render")
    assert record.complete() == [f"finished: results in {tmp_path}", *report]
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "completed"

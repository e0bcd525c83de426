# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Event files of a run that goes on, read back by TensorBoard itself."""

import sys
from types import SimpleNamespace

import pytest
from harness import introduction
from histories import FIVE, record

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.methods.settings import MethodSettings
from fedpeft.server.run_recorder import ABSENT, Board, RunRecorder, scalars

pytest.importorskip("tensorboard")


def read(folder):
    """Tag to (step, value) pairs of one folder of event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def rounds(count):
    made = record(rounds=count)["rounds"]
    for one in made:
        one["schedule"] = {"numbers": [2, 5], "scores": {"slake": [0.25, 0.5]}, "layers": {"slake": [2]}}
        one["rejected"] = {"head": "late"}
        for site in one["sites"].values():
            site |= {"seconds": 1.5, "loss_first": 2.0}
    made[0]["sites"]["slake"]["open"] = None
    return made


def test_every_round_is_on_disk_as_soon_as_it_is_written(tmp_path):
    board, made = Board(tmp_path), rounds(3)
    for number in range(1, 4):
        board.update(made[:number], {})
        site, server = read(tmp_path / "tensorboard" / "slake"), read(tmp_path / "tensorboard" / "server")
        assert [step for step, _ in server["seconds/round"]] == list(range(1, number + 1))
    assert {path.name for path in (tmp_path / "tensorboard").iterdir()} == {*FIVE, "server"}
    assert site["accuracy/overall"][-1] == (3, pytest.approx(made[2]["sites"]["slake"]["overall"]))
    assert [step for step, _ in site["accuracy/open"]] == [2, 3]
    assert site["layer scores/05"] == [(n, 0.5) for n in (1, 2, 3)]
    assert {"loss/last epoch", "loss/first epoch", "alignment/distance", "seconds/site"} <= set(site)
    mean = sum(site["overall"] for site in made[2]["sites"].values()) / 5
    assert server["accuracy/overall"][-1] == (3, pytest.approx(mean))
    assert server["replies/rejected"][-1] == (3, 1.0)


def test_a_resumed_run_shows_its_earlier_rounds_once(tmp_path):
    board, made = Board(tmp_path), rounds(3)
    board.update(made[:2], {})
    board.update(made[:2], {})
    board.update(made, {})
    assert [step for step, _ in read(tmp_path / "tensorboard" / "server")["seconds/round"]] == [1, 2, 3]


def test_a_resumed_job_without_rounds_left_shows_those_before(tmp_path):
    recorder = RunRecorder(tmp_path, job="test")
    recorder.record_lineage("one", SimpleNamespace(history={"rounds": rounds(2)}, round=2))
    sites = {site: introduction(site) for site in FIVE}
    recorder.record_handshake(MethodSettings(), TrainingSettings(rounds=2), sites, problems={})
    assert [step for step, _ in read(tmp_path / "tensorboard" / "server")["seconds/round"]] == [1, 2]


@pytest.mark.parametrize(
    "one",
    [
        {"round": 1, "sites": {}},
        {"round": 1, "sites": {"a": {"overall": None}}, "schedule": {}, "seconds": None, "alignment": {"a": None}},
    ],
)
def test_what_was_not_measured_is_left_out(one):
    assert {tag for _, tag, _ in scalars(one, {})} == {"replies/accepted", "replies/rejected"}


def test_a_missing_tensorboard_is_said_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    board, made = Board(tmp_path), rounds(2)
    with caplog.at_level("INFO"):
        board.update(made[:1], {})
        board.update(made, {})
    assert [record.message for record in caplog.records] == [ABSENT]
    assert not list(tmp_path.iterdir())


def test_each_metric_has_its_own_tag_and_mean():
    one = {"round": 1, "sites": {"a": {"overall": 0.5}, "b": {"overall": 0.25}, "c": {"overall": 0.75}}}
    found = set(scalars(one, {"b": "macro_f1"}))
    assert {("b", "macro_f1/overall", 0.25), ("server", "macro_f1/overall", 0.25)} <= found
    assert {("a", "accuracy/overall", 0.5), ("server", "accuracy/overall", 0.625)} <= found

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's disk is full: one sentence with path and remedy, and the finished rounds are kept."""

import errno

import pytest
from harness import Harness

from fedpeft.core.errors import LocalError
from fedpeft.flare import controller
from fedpeft.server import checkpoint
from fedpeft.server import run_recorder as record_module


def no_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def in_round(number, monkeypatch, module, name):
    """The function of a module fails from its call in that round on."""
    original, calls = getattr(module, name), []

    def write(*args, **kwargs):
        calls.append(args)
        return no_space() if len(calls) >= number else original(*args, **kwargs)

    monkeypatch.setattr(module, name, write)


def test_a_checkpoint_that_cannot_be_written_ends_the_job_in_one_sentence(run, tmp_path, monkeypatch):
    in_round(2, monkeypatch, checkpoint, "save_file")
    harness, manifest, history = run(rounds=3)
    assert manifest["status"] == "failed"
    assert "round-00002 cannot be written (No space left on device): make room on its disk" in manifest["reason"]
    assert str(tmp_path / "state") in manifest["reason"]
    assert harness.panics == [manifest["reason"]]
    assert checkpoint.find(tmp_path / "state", "latest", job="test", submitter="").round == 1
    assert not list(tmp_path.rglob("*.draft"))
    assert [entry["round"] for entry in history["rounds"]] == [1]
    assert manifest["rounds"] == 1


def test_a_state_folder_that_cannot_be_written_is_the_reason_in_the_manifest(run, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(controller, "lineages_folder", lambda fl_ctx: tmp_path / "file" / "state")
    harness, manifest, _ = run(rounds=1)
    assert manifest["status"] == "failed"
    assert manifest["reason"].startswith(str(tmp_path / "file" / "state"))
    assert "cannot be written (Not a directory)" in manifest["reason"]
    assert harness.panics == [manifest["reason"]]


@pytest.mark.parametrize("file", ["history.json", "manifest.json"])
def test_the_reason_is_reported_where_not_even_the_manifest_can_be_written(run, tmp_path, monkeypatch, file):
    original = record_module.write_json

    def write(path, value):
        if path.name == file or (file == "history.json" and path.name == "manifest.json"):
            raise LocalError(f"{path} cannot be written (No space left on device): make room on its disk.")
        original(path, value)

    monkeypatch.setattr(record_module, "write_json", write)
    harness = Harness(rounds=1)
    harness.run()
    (reason,) = harness.panics
    assert f"{tmp_path / file} cannot be written (No space left on device): make room" in reason

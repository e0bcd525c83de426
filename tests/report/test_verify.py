# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A run is believed only as far as its manifest and the digests in it go."""

import hashlib
import json

import pytest

from fedpeft.core.errors import FedpeftError
from fedpeft.core.workspace import MANIFEST
from fedpeft.report.history_reader import verify


def written(folder, **changes):
    (folder / "history.json").write_text("{}")
    digest = hashlib.sha256(b"{}").hexdigest()
    manifest = {"status": "completed", "rounds": 2, "files": {"history.json": digest}, **changes}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_a_run_that_completed_is_believed(tmp_path):
    assert verify(written(tmp_path))["rounds"] == 2


def test_a_folder_without_a_manifest_is_refused(tmp_path):
    with pytest.raises(FedpeftError, match=r"holds no manifest\.json: the job did not finish"):
        verify(tmp_path)


def test_a_failed_run_is_refused_with_its_reason(tmp_path):
    with pytest.raises(FedpeftError, match="the quorum\nFinished rounds: 2"):
        verify(written(tmp_path, status="failed", reason="below the quorum"))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"status": "completed"}', "[" * 100_000])
def test_a_damaged_manifest_is_named(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(FedpeftError, match=r"manifest\.json is not a manifest .*: download the result again\."):
        verify(tmp_path)


def test_a_name_that_no_file_can_have_is_missing(tmp_path):
    run = written(tmp_path)
    manifest = json.loads((run / MANIFEST).read_text())
    (run / MANIFEST).write_text(json.dumps({**manifest, "files": {"\ud800": "00"}}))
    with pytest.raises(FedpeftError, match="is missing or not what the server wrote"):
        verify(run)


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_text("[]")])
def test_a_missing_or_changed_file_is_named(tmp_path, damage):
    run = written(tmp_path)
    damage(run / "history.json")
    with pytest.raises(FedpeftError, match=r"history\.json is missing or not what the server wrote"):
        verify(run)

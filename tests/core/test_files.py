# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import errno
import json
import os
import signal
import stat
import subprocess
import sys

import pytest
import torch
from full_disk import full_disk
from safetensors import SafetensorError

from fedpeft.core.errors import LocalError
from fedpeft.core.files import drop, replacing, write_json
from fedpeft.server import checkpoint
from fedpeft.server.checkpoint import Checkpoint
from fedpeft.site import orders, site_state
from fedpeft.site.site_state import SiteState

TENSORS = {"layer.0.output.up.weight": torch.ones(2, 3)}
HALF = """
import pathlib, sys, time
import {module} as module
def half(tensors, path, **_):
    pathlib.Path(path).write_bytes(b"half")
    print("half", flush=True)
    sys.stdin.read()
module.save_file = half
import torch
tensors = {{"layer.0.output.up.weight": torch.ones(2, 3)}}
folder = pathlib.Path(sys.argv[1])
{call}
"""
CHECKPOINT = "job='j', submitter='', lineage='j-1', round={}, state=tensors, scores={{}}, settings={{}}, history={{}}"
SITE = "round={}, adapter=tensors, head=tensors, optimizer=tensors"
CASES = {
    "checkpoint": (
        "fedpeft.server.checkpoint",
        f"module.save(folder, module.Checkpoint({CHECKPOINT.format(2)}), keep=3)",
        lambda folder: checkpoint.save(
            folder,
            Checkpoint(
                job="j", submitter="", lineage="j-1", round=3, state=TENSORS, scores={}, settings={}, history={}
            ),
            keep=3,
        ),
    ),
    "site state": (
        "fedpeft.site.site_state",
        f"module.save(folder, module.SiteState({SITE.format(2)}))",
        lambda folder: site_state.save(folder, SiteState(round=3, adapter=TENSORS, head=TENSORS, optimizer={})),
    ),
    "received adapter": (
        "fedpeft.site.orders",
        "module.apply_delta(folder, tensors, base=0, version=2)",
        lambda folder: orders.apply_delta(folder, TENSORS, base=0, version=3),
    ),
}


def drafts(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_draft_of_a_killed_process_is_removed_by_the_next_one_and_that_of_a_live_one_stays(case, tmp_path):
    module, call, save = CASES[case]
    command = [sys.executable, "-c", HALF.format(module=module, call=call), str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "half\n"
        (live,) = drafts(tmp_path)
        save(tmp_path)
        assert drafts(tmp_path) == [live]
        process.kill()
        process.wait()
        save(tmp_path)
        assert drafts(tmp_path) == []


def test_a_reused_process_id_keeps_no_draft(tmp_path):
    draft = tmp_path / f".history.json.{os.getpid()}.draft"
    draft.touch()
    os.utime(draft, (0, 0))
    write_json(tmp_path / "other.json", {})
    assert drafts(tmp_path) == []


def test_the_draft_of_a_process_that_nobody_has_buried_is_removed(tmp_path):
    """As in a container whose first process waits for none of those that it inherits."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        (tmp_path / f".history.json.{process.pid}.draft").touch()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        write_json(tmp_path / "other.json", {})
        assert drafts(tmp_path) == []


def test_hidden_files_of_others_stay(tmp_path):
    for name in (".env", ".bash_history.4711", ".a.draft", ".b.x.draft"):
        (tmp_path / name).touch()
    write_json(tmp_path / "history.json", {})
    drop(tmp_path / "none")
    assert len(drafts(tmp_path)) == 4


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_one_sentence_and_costs_nothing_that_was_there(tmp_path, error):
    def write():
        with replacing(tmp_path / "history.json") as draft:
            draft.write_text("half")
            raise error

    write_json(tmp_path / "history.json", {"rounds": 1})
    with pytest.raises(LocalError, match=r"history.json cannot be written \(.*No space left.*\): make room.*\.$"):
        write()
    assert json.loads((tmp_path / "history.json").read_text()) == {"rounds": 1}
    assert drafts(tmp_path) == []


@pytest.mark.parametrize("case", CASES)
def test_a_disk_that_is_full_is_told_from_one_that_may_not_be_written_to(case, tmp_path):
    _, _, save = CASES[case]
    with full_disk(), pytest.raises(LocalError, match="make room on its disk") as refused:
        save(tmp_path)
    assert refused.value.code == "disk-full"
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match="let this user write there") as refused:
        write_json(tmp_path / "file" / "history.json", {})
    assert refused.value.code == "disk-unwritable"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_private_file_is_its_owners_alone_from_its_first_byte_on(tmp_path, mask):
    file, modes = tmp_path / "page.html", []
    file.touch(0o644)
    before = os.umask(mask)
    try:
        with replacing(file, private=True) as draft:
            modes.append(stat.S_IMODE(draft.stat().st_mode))
            draft.write_text("an answer")
    finally:
        os.umask(before)
    assert [*modes, stat.S_IMODE(file.stat().st_mode)] == [0o600, 0o600]
    assert file.read_text() == "an answer"


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    for content in ("one", "two"):
        with replacing(tmp_path / "round-00001") as draft:
            draft.mkdir()
            (draft / content).touch()
    assert [path.name for path in (tmp_path / "round-00001").iterdir()] == ["two"]
    assert drafts(tmp_path) == []


def test_a_folder_that_is_dropped_is_at_no_moment_there_in_part(tmp_path):
    """Killed while its files are removed: what is left no longer has the folder's name."""
    folder = tmp_path / "round-00001"
    folder.mkdir()
    (folder / "head.safetensors").touch()
    die = "import os, sys, shutil, pathlib; from fedpeft.core import files\n"
    die += f"shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    die += "files.drop(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", die, str(folder)], check=False)
    assert not folder.exists()
    write_json(tmp_path / "history.json", {})
    assert drafts(tmp_path) == []

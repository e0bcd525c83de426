# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Two jobs do not work in one state; a dead process holds none."""

import subprocess
import sys

import pytest

from fedpeft.core.errors import LocalError
from fedpeft.core.locks import StateLock, may_be_in_use

HOLD = """
import pathlib, sys
from fedpeft.core.locks import StateLock
StateLock().take(pathlib.Path(sys.argv[1]), "job-1")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process of job-1 that holds a lineage."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "small-1")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.slow
def test_the_state_of_a_job_that_runs_is_refused_by_name(tmp_path, holder):
    with pytest.raises(LocalError, match=f"job job-1 in process {holder.pid}") as refused:
        StateLock().take(tmp_path / "small-1", "job-2", patience=0)
    assert refused.value.code == "state-in-use"
    assert may_be_in_use(tmp_path / "small-1")
    StateLock().take(tmp_path / "small-2", "job-2", patience=0)


def test_a_killed_process_holds_nothing(tmp_path, holder):
    holder.kill()
    holder.wait()
    assert not may_be_in_use(tmp_path / "small-1")
    StateLock().take(tmp_path / "small-1", "job-2", patience=0)


def test_a_job_gives_back_what_it_holds_and_may_take_it_twice(tmp_path):
    lock, other = StateLock(), StateLock()
    lock.take(tmp_path, "job-1", patience=0)
    lock.take(tmp_path, "job-1", patience=0)
    with pytest.raises(LocalError):
        other.take(tmp_path, "job-2", patience=0)
    lock.release()
    other.take(tmp_path, "job-2", patience=0)
    other.release()
    assert not may_be_in_use(tmp_path)


def test_a_folder_that_cannot_be_locked_is_named(tmp_path):
    (tmp_path / "small-1").write_text("a file")
    with pytest.raises(LocalError, match=r"small-1/in-use.lock cannot be locked"):
        StateLock().take(tmp_path / "small-1", "job-1", patience=0)

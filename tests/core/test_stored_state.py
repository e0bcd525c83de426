# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A state on disk is the state that was written, and reads what somebody asks for."""

import errno
import gc

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedpeft.core import states
from fedpeft.core.errors import LocalError
from fedpeft.core.states import Stored, StoredState, digest, equal, on_disk
from fedpeft.protocol.secure_sum import wrapped_sum

STATE = {"layer.0.output.down.weight": torch.randn(3, 2), "shared.rule": torch.randn(4).bfloat16()}


def stored(folder, state, holder=None):
    """A state as FLARE's offload leaves it: a file for each tensor, under a name of FLARE's."""
    places = {}
    for number, (key, tensor) in enumerate(state.items()):
        save_file({f"T{number}": tensor}, folder / f"chunk_{number}")
        places[key] = Stored(folder / f"chunk_{number}", f"T{number}")
    return StoredState(places, holder)


def test_it_is_equal_to_what_was_written(tmp_path):
    read = stored(tmp_path, STATE)
    assert list(read) == list(STATE)
    assert len(read) == 2
    assert equal(read, STATE)
    assert digest(read) == digest(STATE)
    assert "shared.rule" in read
    assert "shared.other" not in read


def test_masked_adapters_are_added_from_the_disk(tmp_path):
    states = [{"layer.0.output.down.weight": torch.randint(-(2**62), 2**62, (5,))} for _ in range(3)]
    read = []
    for number, state in enumerate(states):
        (tmp_path / str(number)).mkdir()
        read.append(stored(tmp_path / str(number), state))
    for key, total in wrapped_sum(states).items():
        assert (total == wrapped_sum(read)[key]).all()


def test_views_of_a_file_outlive_its_name(tmp_path):
    large = {"layer.0.output.down.weight": torch.randn(100, 300).T, "shared.rule": torch.randn(4)}
    views = on_disk(large, tmp_path)
    assert not list(tmp_path.iterdir())
    assert list(views) == list(large)
    assert equal(views, large)
    save_file({key: view.contiguous() for key, view in views.items()}, tmp_path / "again")
    assert equal(load_file(tmp_path / "again"), large)


def test_a_disk_that_is_full_is_named_with_its_remedy(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(states, "save_file", full)
    with pytest.raises(LocalError, match=r"cannot be written \(No space left on device\): make room on its disk"):
        on_disk({"shared.rule": torch.zeros(100_000)}, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_part_of_it_holds_the_files_of_the_whole(tmp_path):
    class Folder:
        closed = False

        def __del__(self):
            Folder.closed = True

    part = stored(tmp_path, STATE, Folder()).select_keys({"shared.rule"})
    gc.collect()
    assert not Folder.closed
    assert equal(part, {"shared.rule": STATE["shared.rule"]})
    del part
    gc.collect()
    assert Folder.closed

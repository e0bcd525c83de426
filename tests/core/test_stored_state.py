# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A state on disk is the state that was written, and reads what somebody asks for."""

import gc

import torch
from safetensors.torch import save_file

from fedpeft.core.states import digest, equal
from fedpeft.core.stored_state import Stored, StoredState

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


def test_a_part_of_it_holds_the_files_of_the_whole(tmp_path):
    class Folder:
        closed = False

        def __del__(self):
            Folder.closed = True

    part = stored(tmp_path, STATE, Folder()).of_keys({"shared.rule"})
    gc.collect()
    assert not Folder.closed
    assert equal(part, {"shared.rule": STATE["shared.rule"]})
    del part
    gc.collect()
    assert Folder.closed

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A state on disk, of which only those tensors are in memory that somebody holds.

Its files are safetensors. A tensor that is read is a view of its file: the operating system loads its pages when they
are computed with, and can take them back at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedpeft.core.files import unwritable
from fedpeft.core.states import State

MAX_SMALL = 2**16  # bytes of a tensor that is not worth a file


def on_disk(state: Mapping[str, Tensor], folder: Path) -> State:
    """Return the tensors as views of a file in a folder, which has no name any more: it is gone with the last of them.

    Small ones stay in memory.

    Raises:
        LocalError: the file cannot be written.
    """
    large = {key: tensor.contiguous() for key, tensor in state.items() if tensor.nbytes > MAX_SMALL}
    if not large:
        return dict(state)
    file = folder / f"state-{threading.get_ident()}"
    try:
        save_file(large, file)
        views = load_file(file)
        file.unlink()
    except (OSError, SafetensorError) as error:
        file.unlink(missing_ok=True)
        raise unwritable(file, error) from error
    return {key: views.get(key, tensor) for key, tensor in state.items()}


class Stored(NamedTuple):
    """Where a tensor lies: its file, and its name there."""

    file: str | Path
    name: str


class StoredState(Mapping[str, Tensor]):
    """A state whose tensors are read from disk each time that they are used.

    Args:
        places: by key, where its tensor lies.
        holder: what keeps the files from being removed; this state holds it as long as it lives.

    Example:
        >>> import tempfile, torch
        >>> from safetensors.torch import save_file
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_file({"t": torch.ones(2)}, f"{folder}/chunk")
        ...     StoredState({"shared.rule": Stored(f"{folder}/chunk", "t")})["shared.rule"]
        tensor([1., 1.])
    """

    def __init__(self, places: Mapping[str, Stored], holder: Any = None) -> None:
        self._places, self._holder = dict(places), holder

    def __getitem__(self, key: str) -> Tensor:
        file, name = self._places[key]
        with safe_open(file, framework="pt") as opened:
            return opened.get_tensor(name)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def of_keys(self, keys: Container[str]) -> StoredState:
        """Return the part of it that has one of these keys."""
        return StoredState({key: place for key, place in self._places.items() if key in keys}, self._holder)

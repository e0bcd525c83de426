# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Small backbones that a process reads once: reading one takes most of the time in which a test makes a learner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

from copies import copied
from torch import nn

from fedpeft.backbones.backbone import Backbone, Pretrained

MAX_BYTES = 4_000_000  # of all files of a source
_KEPT: dict[Any, Backbone] = {}


@contextmanager
def kept_backbones() -> Iterator[None]:
    """Let `Pretrained.loaded` return copies of what it has read from the same files with the same settings."""
    read = Pretrained.loaded

    def loaded(self: Pretrained, settings: Any, *, half: bool = False, download: bool = True) -> Backbone:
        folders = [settings.source or self.default_source, settings.image_source or self.default_image_source]
        files = [_files(folder) for folder in folders if folder]
        if not files or not all(files):
            return read(self, settings, half=half, download=download)
        key = (self.build, half, repr(astuple(settings)), *files)
        if key not in _KEPT:
            made = read(self, settings, half=half, download=download)
            if not isinstance(made, nn.Module):
                return made
            _KEPT[key] = made
        return copied(_KEPT[key])

    Pretrained.loaded = loaded
    try:
        yield
    finally:
        Pretrained.loaded = read


def _files(folder: str) -> tuple[Any, ...]:
    """What tells the files of a folder from those of another time; nothing where there is none, or a large one."""
    if not Path(folder).is_absolute() or not Path(folder).is_dir():
        return ()
    stats = [(path, path.stat()) for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    if sum(stat.st_size for _, stat in stats) > MAX_BYTES:
        return ()
    return tuple((str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats)

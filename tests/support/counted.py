# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Parameter counts of methods on a backbone of full size: those of all take seconds, so each is counted once."""

import functools
from collections.abc import Iterable

from fedpeft import backbones, methods
from fedpeft.job.catalog import MethodEntry, entry


def counted(backbone: str, names: Iterable[str] | None = None) -> tuple[MethodEntry, ...]:
    """The entries of `fedpeft methods --backbone NAME`: of all methods, or of some."""
    return tuple(_entry(backbone, name) for name in names or methods.names())


@functools.cache
def _entry(backbone: str, name: str) -> MethodEntry:
    return entry(_skeleton(backbone), name, backbones.BACKBONES.get(backbone).method_settings)


@functools.cache
def _skeleton(backbone: str):
    return backbones.skeleton(backbone)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Parameter counts of every method on a backbone of full size, which take seconds: each backbone is counted once."""

import functools

from fedpeft import backbones
from fedpeft.methods.catalog import MethodEntry, entries


@functools.cache
def counted(name: str) -> tuple[MethodEntry, ...]:
    """The entries of `fedpeft methods --backbone NAME`."""
    return tuple(entries(backbones.skeleton(name)))

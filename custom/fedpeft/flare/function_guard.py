# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Wrap a function of FLARE in a check, once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fedpeft.core.errors import FedpeftError

_GUARD = "fedpeft_guard"


def replace_function(owner: Any, name: str, around: Callable[[Callable], Callable]) -> None:
    """Replace `owner.name` by `around(owner.name)`; a second call changes nothing.

    Raises:
        FedpeftError: FLARE has no such function; a process that cannot check must not start.
    """
    present = getattr(owner, name, None)
    if not callable(present):
        raise FedpeftError(f"FLARE has no {owner.__name__}.{name}: install the version in constraints.txt.")
    if not hasattr(present, _GUARD):
        guarded = functools.wraps(present)(around(present))
        setattr(guarded, _GUARD, True)
        setattr(owner, name, guarded)

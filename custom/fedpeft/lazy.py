# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Public names of a package that are imported when they are first used, and that `dir()` and completion still show."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def load(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Import a public name; the body of a package's `__getattr__` (PEP 562).

    Args:
        package: its `__name__`.
        homes: public name -> module that defines it, by its whole name or by that within the package.
        name: what is looked up.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    home = homes[name]
    return getattr(import_module(home if home.startswith("fedpeft.") else f"{package}.{home}"), name)


def listing(package: str, homes: Mapping[str, str]) -> list[str]:
    """What the package has and what it can import; the body of its `__dir__`."""
    return sorted({*vars(sys.modules[package]), *homes})

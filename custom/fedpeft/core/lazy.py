# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Import a package's public names when they are first used; `dir()` and completion still list them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def load(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Import a public name; for a package's `__getattr__` (PEP 562).

    Args:
        package: its `__name__`.
        homes: public name -> module that defines it, by its full name or relative to the package.
        name: the public name.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    home = homes[name]
    return getattr(import_module(home if home.startswith("fedpeft.") else f"{package}.{home}"), name)


def listing(package: str, homes: Mapping[str, str]) -> list[str]:
    """Return all names that the package has or can import; for its `__dir__`."""
    return sorted({*vars(sys.modules[package]), *homes})

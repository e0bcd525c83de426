# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The groups of checks, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module

from fedpeft.doctor.case import Case
from fedpeft.doctor.finding import Finding, failed
from fedpeft.errors import FedpeftError

_GROUPS: dict[str, str] = {}


def register(name: str, module: str) -> None:
    """Add a group: a module with `check(case)`, imported when its turn comes.

    Raises:
        FedpeftError: the name is taken.
    """
    if name in _GROUPS:
        raise FedpeftError(f"The group {name!r} is already registered by {_GROUPS[name]}: choose another name.")
    _GROUPS[name] = module


def examine(
    case: Case, *, during: Callable[[str], AbstractContextManager] = nullcontext
) -> Iterator[tuple[str, Finding]]:
    """Every finding as soon as it is made, with its group's name; an error of one check does not hide the others.

    Args:
        case: what is examined.
        during: context in which a group is at work, such as one that shows its name.
    """
    for name, module in _GROUPS.items():
        found: list[Finding] = []
        with during(name):
            try:
                found.extend(import_module(module).check(case))
            except FedpeftError as error:
                found.append(failed(str(error)))
            except Exception as error:
                found.append(failed(f"this check itself broke ({type(error).__name__}: {error}): please report it."))
        yield from ((name, finding) for finding in found)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The groups of checks, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed
from fedpeft.errors import FedpeftError
from fedpeft.registry import Registry

Check = Callable[[Context], Iterator[Finding]]
CHECKS: Registry[Check] = Registry("group of checks", "fedpeft.checks")
register = CHECKS.register


def examine(
    context: Context, *, during: Callable[[str], AbstractContextManager] = nullcontext
) -> Iterator[tuple[str, Finding]]:
    """Every finding as soon as it is made, with its group's name; an error of one check does not hide the others.

    Args:
        context: what is examined.
        during: context in which a group is at work, such as one that shows its name.
    """
    for name in CHECKS.names():
        found: list[Finding] = []
        with during(name):
            try:
                found.extend(CHECKS.get(name)(context))
            except FedpeftError as error:
                found.append(failed(str(error)))
            except Exception as error:
                found.append(failed(f"this check itself broke ({type(error).__name__}: {error}): please report it."))
        yield from ((name, finding) for finding in found)

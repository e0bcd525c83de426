# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The groups of checks, in the order in which they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import Registry
from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed

Check = Callable[[Context], Iterator[Finding]]
CHECKS: Registry[Check] = Registry("group of checks", "fedpeft.checks", Callable)
register = CHECKS.register


def examine(
    context: Context, *, during: Callable[[str], AbstractContextManager] = nullcontext
) -> Iterator[tuple[str, Finding]]:
    """Run all groups of checks and yield each finding with its group's name; an error ends only its own group.

    Args:
        context: what to check.
        during: makes a context manager around a group, for instance one that shows its name.
    """
    for name in CHECKS.names():
        findings: list[Finding] = []
        with during(name):
            try:
                findings.extend(CHECKS.get(name)(context))
            except FedpeftError as error:
                findings.append(failed(str(error)))
            except Exception as error:
                findings.append(
                    failed(f"this check itself failed ({type(error).__name__}: {error}): please report it.")
                )
        yield from ((name, finding) for finding in findings)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Checks of what would keep a job from running on this machine, beyond `nvflare preflight-check`.

A group of checks is a function `check(context) -> Iterator[Finding]` and one line `register(...)`. All groups run in
that order, and each finding is printed as soon as it is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

from rich.table import Table
from rich.text import Text

from fedpeft.core.console import Console, cell
from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import Registry
from fedpeft.core.text import counted, one_line
from fedpeft.doctor.context import FAIL, PASS, WARN, Context, Finding, failed, open_context

__all__ = ["Context", "Finding", "examine", "open_context", "register"]

Check = Callable[[Context], Iterator[Finding]]
CHECKS: Registry[Check] = Registry("group of checks", "fedpeft.checks", Callable)
register = CHECKS.register
register("versions", "fedpeft.doctor.machine:check_versions")
register("job", "fedpeft.doctor.context:check_job")
register("admission", "fedpeft.doctor.policies:check_admission")
register("tracking", "fedpeft.doctor.content:check_tracking")
register("allow-list", "fedpeft.doctor.policies:check_allow_list")
register("privacy", "fedpeft.doctor.policies:check_privacy")
register("clock", "fedpeft.doctor.machine:check_clock")
register("ports", "fedpeft.doctor.machine:check_ports")
register("site-file", "fedpeft.doctor.policies:check_site_file")
register("data", "fedpeft.doctor.content:check_data")
register("backbone", "fedpeft.doctor.content:check_backbone")
register("memory", "fedpeft.doctor.memory:check_memory")
register("disk", "fedpeft.doctor.machine:check_disk")


def examine(
    context: Context, *, during: Callable[[str], AbstractContextManager] = nullcontext
) -> Iterator[tuple[str, Finding]]:
    """Run all groups of checks and yield each finding with its group's name; an error ends only its own group."""
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


STYLES = {PASS: "green", WARN: "yellow", FAIL: "bold red"}
WIDTH = 10


def print_findings(context: Context, *, console: Console | None = None) -> None:
    """Run all checks and print every finding."""
    console = console or Console()
    counts: Counter[str] = Counter()
    for group, finding in examine(context, during=lambda name: console.status(f"checking {name}")):
        counts[finding.verdict] += 1
        _print(console, group, finding)
    if context.job is None:
        console.print(Text("Name a job's folder to check its data, backbone and memory too."), soft_wrap=True)
    warnings = counted(counts[WARN], "warning")
    console.print(Text(f"{counts[PASS]} passed, {warnings}, {counts[FAIL]} failed"), soft_wrap=True)
    if counts[FAIL]:
        raise FedpeftError(
            f"{counts[FAIL]} of {counts.total()} checks failed: follow the lines above, then run doctor again."
        )


def _print(console: Console, group: str, finding: Finding) -> None:
    verdict = Text(finding.verdict, style=STYLES[finding.verdict])
    if not console.is_terminal:
        console.print(Text(f"{finding.verdict}  {group:{WIDTH}}  {one_line(finding.sentence)}"), soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=4)
    grid.add_column(width=WIDTH)
    grid.add_column(overflow="fold")
    grid.add_row(verdict, Text(group), cell(finding.sentence))
    console.print(grid)

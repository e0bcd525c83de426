# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check that nothing of a job, or of the folder of the start, is read before this participant has checked it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from fedpeft.core.python_environment import SAFE_PATH, python_environment
from fedpeft.core.workspace import GUARDS
from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed, passed, warned
from fedpeft.doctor.kit import ADMIN, Kit
from fedpeft.job.admission.job import FILES

PROBE = "fedpeft.flare.flare_guards"
_APP_FILES = {name.rpartition("/")[2] for name in FILES}


def check(context: Context) -> Iterator[Finding]:
    """Check the kit's scripts, the component in its resources.json, its hooks in FLARE, and files of earlier jobs."""
    if context.kit is None:
        return
    yield from scripts(context.kit)
    if context.kit.role == ADMIN:
        return
    yield component(context.kit.resources(), context.kit)
    yield probe()
    yield from leftovers(context.kit)


def scripts(kit: Kit) -> Iterator[Finding]:
    """Find a script of a kit that was provisioned before its Pythons were kept from importing where it is called."""
    for file in sorted((kit.folder / "startup").glob("*.sh")):
        if f"export {SAFE_PATH}=1" not in file.read_text():
            yield warned(
                f"{file} has Python import from the folder in which it is called: insert `export {SAFE_PATH}=1` as its "
                f"second line, or have the kit provisioned again."
            )
            return


def component(resources: Mapping[str, Any], kit: Kit) -> Finding:
    """Check that the kit names the component that checks jobs."""
    guard = GUARDS[kit.role]
    present = [entry for entry in resources.get("components", []) if isinstance(entry, Mapping)]
    if any(entry.get("id") == guard["id"] and entry.get("path") == guard["path"] for entry in present):
        return passed(f"this {kit.role} checks a job before FLARE reads it.")
    others = [entry.get("path") for entry in present if entry.get("id") == guard["id"]]
    change = f"replace {others[0]!r}" if others else "append an entry"
    return failed(
        f"nothing checks a job before FLARE reads it: {change} in components of {kit.resources_file}, with id "
        f"{guard['id']!r}, path {guard['path']!r} and no args."
    )


def probe() -> Finding:
    """Check the hooks in the installed FLARE; in a separate process, because they replace FLARE's functions."""
    command = [sys.executable, "-m", PROBE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=python_environment())
    if done.returncode == 0:
        return passed("HOCON, YAML and variables are refused by the installed FLARE.")
    reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return failed(
        f"the check of jobs does not work in the installed FLARE ({reason}): install the versions in constraints.txt."
    )


def leftovers(kit: Kit) -> Iterator[Finding]:
    """Find files of earlier jobs: FLARE searches their run folders for its own configuration too."""
    for file in sorted(kit.folder.glob("*/app_*/**/*")):
        if file.is_file() and file.name not in _APP_FILES and not file.name.startswith(".__nvfl_"):
            yield failed(f"{file} is left from an earlier job, and FLARE may read it: remove {file.parents[1]}.")
            return

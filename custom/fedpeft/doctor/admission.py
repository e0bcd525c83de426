# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Whether this participant checks a job before FLARE reads it, and whether the check takes hold in this FLARE."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from fedpeft.admission.job import FILES
from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed, passed
from fedpeft.doctor.kit import ADMIN, Kit
from fedpeft.workspace import GUARDS

PROBE = "fedpeft.flare.flare_guards"
_APP_FILES = {name.rpartition("/")[2] for name in FILES}


def check(context: Context) -> Iterator[Finding]:
    """The component in the kit's resources.json, what it changes in FLARE, and leftovers of jobs from before it."""
    if context.kit is None or context.kit.role == ADMIN:
        return
    yield component(context.kit.resources(), context.kit)
    yield probe()
    yield from leftovers(context.kit)


def component(resources: Mapping[str, Any], kit: Kit) -> Finding:
    """Whether the kit names the component that checks jobs."""
    wanted = GUARDS[kit.role]
    present = [entry for entry in resources.get("components", []) if isinstance(entry, Mapping)]
    if any(entry.get("id") == wanted["id"] and entry.get("path") == wanted["path"] for entry in present):
        return passed(f"this {kit.role} checks a job before FLARE reads it.")
    others = [entry.get("path") for entry in present if entry.get("id") == wanted["id"]]
    change = f"replace {others[0]!r}" if others else "append an entry"
    return failed(
        f"nothing checks a job before FLARE reads it: {change} in components of {kit.resources_file}, with id "
        f"{wanted['id']!r}, path {wanted['path']!r} and no args."
    )


def probe() -> Finding:
    """Whether the check fits the installed FLARE; in a process of its own, because it changes FLARE's functions."""
    done = subprocess.run([sys.executable, "-m", PROBE], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return passed("HOCON, YAML and variables are refused by the installed FLARE.")
    reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return failed(f"the check of jobs does not fit the installed FLARE ({reason}): install what constraints.txt names.")


def leftovers(kit: Kit) -> Iterator[Finding]:
    """FLARE looks for its own configuration in the run folders of earlier jobs as well."""
    for file in sorted(kit.folder.glob("*/app_*/**/*")):
        if file.is_file() and file.name not in _APP_FILES and not file.name.startswith(".__nvfl_"):
            yield failed(f"{file} is left from an earlier job, and FLARE may read it: remove {file.parents[1]}.")
            return

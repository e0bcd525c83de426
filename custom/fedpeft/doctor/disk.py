# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check that the folders a participant writes to are writable, have space, and are not temporary; and the temporary."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.python_environment import TEMPORARY, no_sockets, with_sockets
from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed, passed, warned
from fedpeft.doctor.kit import ADMIN, SERVER

GB = 10**9
SPARE = GB  # logs, FLARE's own files, the copy of the job


def check(context: Context) -> Iterator[Finding]:
    """Check the simulator's workspace, or the kit's folder and the server's job store; and the temporary folder."""
    if context.kit is None or context.kit.role != ADMIN:
        yield writable(context.kit.folder if context.kit else context.workspace, _state(context) + SPARE)
    if context.kit and context.kit.role == SERVER:
        for folder in stores(context.kit.resources()):
            yield writable(folder, SPARE)
            if folder.is_relative_to(tempfile.gettempdir()):
                yield warned(
                    f"the server stores jobs in {folder}, which is temporary: set uri_root of job_manager in "
                    f"{context.kit.resources_file} to a folder of its own."
                )
    yield from sockets(context)


def sockets(context: Context) -> Iterator[Finding]:
    """Check that the processes of a job can have sockets: those of the simulator, and workers that decode images."""
    problem = no_sockets()
    if not problem:
        return
    training = context.job.sections.get("training") if context.job else None
    if context.kit is None:
        try:
            with with_sockets() as other:
                yield passed(f"the path of {tempfile.gettempdir()} is too long for sockets, {other[TEMPORARY]} is not.")
        except FedpeftError as error:
            yield failed(str(error))
    elif context.sites and isinstance(training, Mapping) and training.get("workers"):
        yield failed(f"training.workers is {training['workers']}: {problem}")


def writable(folder: Path, needed: int) -> Finding:
    """Check that a folder, or its nearest existing parent, is writable and has space."""
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            free = shutil.disk_usage(place).free
    except OSError as error:
        return failed(f"{folder} cannot be written to ({error.strerror}): change its owner or choose another folder.")
    if free < needed:
        return failed(f"{folder} has {free / GB:.1f} GB free, {needed / GB:.1f} GB are needed: free some space.")
    return passed(f"{folder} can be written to; {free / GB:.0f} GB free, {needed / GB:.1f} GB are needed.")


def stores(resources: Mapping[str, Any]) -> list[Path]:
    """The folders in which a server's job manager stores jobs and results."""
    components = resources.get("components", [])
    managers = [c for c in components if isinstance(c, Mapping) and c.get("id") == "job_manager"]
    roots = [(manager.get("args") or {}).get("uri_root") for manager in managers]
    return [Path(root) for root in roots if isinstance(root, str) and root]


def _state(context: Context) -> int:
    """Bytes that the sites store here; 0 if that cannot be measured, which `memory` then reports."""
    try:
        return context.footprint.state * len(context.sites) if context.sites else 0
    except FedpeftError:
        return 0

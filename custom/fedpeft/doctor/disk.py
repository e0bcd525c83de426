# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The folders that a participant writes to: writable, with room, and not ones that the system empties."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed, passed, warned
from fedpeft.doctor.kit import ADMIN, SERVER
from fedpeft.errors import FedpeftError

GB = 10**9
SPARE = GB  # logs, FLARE's own files, the copy of the job


def check(context: Context) -> Iterator[Finding]:
    """The simulator's workspace, or the kit's folder and the server's job store."""
    if context.kit is None or context.kit.role != ADMIN:
        yield writable(context.kit.folder if context.kit else context.workspace, _state(context) + SPARE)
    if context.kit and context.kit.role == SERVER:
        for folder in stores(context.kit.resources()):
            yield writable(folder, SPARE)
            if folder.is_relative_to(tempfile.gettempdir()):
                yield warned(
                    f"the server keeps jobs in {folder}, which the system empties: set uri_root of job_manager in "
                    f"{context.kit.resources_file} to a folder of its own."
                )


def writable(folder: Path, needed: int) -> Finding:
    """Whether a folder, or the nearest one above it that exists, can be written to and has room."""
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            free = shutil.disk_usage(place).free
    except OSError as error:
        return failed(f"{folder} cannot be written to ({error.strerror}): change its owner or choose another folder.")
    if free < needed:
        return failed(f"{folder} has {free / GB:.1f} GB free, needed are {needed / GB:.1f} GB: make room.")
    return passed(f"{folder} can be written to; {free / GB:.0f} GB free, needed are {needed / GB:.1f} GB.")


def stores(resources: Mapping[str, Any]) -> list[Path]:
    """The folder in which a server's job manager keeps jobs and results."""
    components = resources.get("components", [])
    managers = [c for c in components if isinstance(c, Mapping) and c.get("id") == "job_manager"]
    roots = [(manager.get("args") or {}).get("uri_root") for manager in managers]
    return [Path(root) for root in roots if isinstance(root, str) and root]


def _state(context: Context) -> int:
    """Bytes that the sites keep here; nothing where it cannot be known, which `memory` then says."""
    try:
        return context.footprint.state * len(context.sites) if context.sites else 0
    except FedpeftError:
        return 0

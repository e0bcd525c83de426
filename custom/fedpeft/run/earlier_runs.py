# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Move earlier runs out of a simulator workspace, which FLARE deletes when the next run starts."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from fedpeft.core.bounded_files import read_json
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import write_json
from fedpeft.core.run_names import HISTORY, MANIFEST
from fedpeft.core.workspace_lock import runs_folder
from fedpeft.report.status.progress import CUT_OFF, FAILED, SIMULATED

STAYS = ("local", "startup")  # what FLARE does not delete


def set_aside(workspace: Path) -> Path | None:
    """Move the run in a workspace to `<workspace>_runs/<when it last wrote>-<job>`, in the workspace's own layout.

    Returns:
        the run's new folder; None if the workspace held no run.

    Raises:
        FedpeftError: it cannot be moved.
    """
    written = [file for name in (MANIFEST, HISTORY) if (file := workspace / SIMULATED / name).is_file()]
    if not written:
        return None
    when = time.strftime("%Y%m%d-%H%M%S", time.localtime(max(file.stat().st_mtime for file in written)))
    folder = _unused(runs_folder(workspace) / f"{when}-{_job(written[0])}")
    try:
        if MANIFEST not in [file.name for file in written]:
            write_json(workspace / SIMULATED / MANIFEST, _cut_off(written[0]))
        folder.mkdir(parents=True)
        for entry in sorted(workspace.iterdir(), key=lambda path: path.name == SIMULATED.parts[0]):  # the results last
            if entry.name not in STAYS:
                entry.rename(folder / entry.name)
    except OSError as error:
        raise FedpeftError(
            f"the run in {workspace} cannot be moved to {folder} ({error.strerror}): move it elsewhere, or name "
            f"another folder with -w."
        ) from error
    return folder


def _cut_off(history: Path) -> dict[str, Any]:
    """Return a manifest for a run that ended without writing one."""
    record = _read(history)
    rounds = record.get("rounds")
    return {
        "job": record.get("job", ""),
        "status": FAILED,
        "reason": CUT_OFF,
        "rounds": len(rounds) if isinstance(rounds, list) else 0,
        "files": {},
    }


def _job(file: Path) -> str:
    name = str(_read(file).get("job", "")).lower()
    return re.sub(r"[^a-z0-9_]+", "-", name).strip("-")[:60] or "job"


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(read_json(file))
    except (OSError, ValueError, TypeError):
        return {}


def _unused(folder: Path) -> Path:
    number = 1
    while (free := folder if number == 1 else folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return free

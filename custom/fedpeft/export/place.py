# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Where an export may be written: nowhere that the server serves or FLARE deletes, and over nothing else."""

from __future__ import annotations

from pathlib import Path

from fedpeft.errors import FedpeftError
from fedpeft.predict.exported import is_exported
from fedpeft.status.progress import HISTORY, MANIFEST
from fedpeft.status.runs import SIMULATED
from fedpeft.workspace_lock import SERVER

SERVERS_KIT = Path("startup") / "fed_server.json"


def check_place(out: Path, *, force: bool) -> None:
    """Refuse a folder that an export must not be written to.

    Args:
        out: need not exist.
        force: whether an earlier export may be replaced.

    Raises:
        FedpeftError: says why and what to name instead.
    """
    out = out.resolve()
    for folder in (out, *out.parents):
        if reason := _servers(folder):
            raise FedpeftError(
                f"{out} lies in {folder}, {reason}, and an export holds the site's head and answers: name a folder of "
                f"the site's own with --out."
            )
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not is_exported(out):
        raise FedpeftError(f"{out} is there and is no export, so that nothing in it is replaced: name a new folder.")
    if not force:
        raise FedpeftError(f"{out} is an earlier export: name a new folder, or replace it with --force.")


def _servers(folder: Path) -> str:
    """Return why a folder is the server's; empty: it is not."""
    if (folder / SERVERS_KIT).exists():
        return "the server's workspace"
    if folder.name == SERVER or any((folder / name).is_file() for name in (HISTORY, MANIFEST)):
        return "which holds what the server keeps of a run"
    if (folder / SIMULATED).is_dir():
        return "a simulator's workspace, which the next run deletes"
    return ""

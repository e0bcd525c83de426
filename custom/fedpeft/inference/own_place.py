# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Where what a site keeps to itself must not be written: the folders of the server."""

from __future__ import annotations

from pathlib import Path

from fedpeft.core.errors import FedpeftError
from fedpeft.core.run_names import HISTORY, MANIFEST
from fedpeft.core.workspace_lock import SERVER
from fedpeft.report.status.progress import SIMULATED

SERVERS_KIT = Path("startup") / "fed_server.json"


def check_own_place(path: Path, *, holds: str) -> None:
    """Refuse a file or folder that lies in a folder of the server.

    Args:
        path: need not exist.
        holds: what must stay at the site, a clause for the error.

    Raises:
        FedpeftError: it does.
    """
    path = path.resolve()
    for folder in (path, *path.parents):
        if reason := _servers(folder):
            raise FedpeftError(f"{path} lies in {folder}, {reason}, and {holds}: name a place of the site's own.")


def _servers(folder: Path) -> str:
    """Return why a folder is the server's; empty: it is not."""
    if (folder / SERVERS_KIT).exists():
        return "the server's workspace"
    if folder.name == SERVER or any((folder / name).is_file() for name in (HISTORY, MANIFEST)):
        return "which holds what the server keeps of a run"
    if (folder / SIMULATED).is_dir():
        return "a simulator's workspace, which the next run deletes"
    return ""

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Folders of lineages: what a job shares with those that resume it, at the server and at each site."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import drop
from fedpeft.core.locks import is_in_use

KEPT = 3
SECONDS_IN_USE = 24 * 3600  # a lineage with a round in this time may belong to a running job
LINEAGE = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")


def lineage_folder(lineages: Path, lineage: str) -> Path:
    """The folder of a lineage.

    Raises:
        FedpeftError: it is not a plain name; it comes from another participant and must not leave the folder.
    """
    if not LINEAGE.fullmatch(lineage):
        raise FedpeftError(
            f"the lineage {lineage!r:.60} is not a plain name: install the same fedpeft version everywhere."
        )
    return lineages / lineage


def prune(lineages: Path, current: str) -> None:
    """Remove unused lineages of the same job as `current`, older than a day and not among the newest `KEPT`."""
    job = _job(current)
    own = sorted(path for path in lineages.glob("*") if path.name != current and _job(path.name) == job)
    for old in own[: -(KEPT - 1)]:
        with contextlib.suppress(FileNotFoundError):  # another job may remove it too
            if time.time() - old.stat().st_mtime > SECONDS_IN_USE and not is_in_use(old):
                drop(old)


def _job(lineage: str) -> str:
    return lineage.rsplit("-", 3)[0]

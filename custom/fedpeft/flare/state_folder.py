# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Where a participant keeps what must outlive a job: the server its checkpoints, a site its own adapter and head.

A run directory belongs to one job id, and a job that goes on where another stopped has an id of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from nvflare.apis.fl_context import FLContext

from fedpeft.errors import FedpeftError
from fedpeft.files import drop

VARIABLE = "FEDPEFT_STATE"
NAME = "fedpeft"
KEPT = 3
SECONDS_IN_USE = 24 * 3600  # since its last round, in which a lineage may be that of a job that runs
LINEAGE = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")


def state_folder(fl_ctx: FLContext, lineage: str) -> Path:
    """`<participant's workspace>/fedpeft/<lineage>`, or `$FEDPEFT_STATE/<participant>/<lineage>` where that is set.

    Args:
        fl_ctx: of the participant.
        lineage: name that a job and those that resume it have in common.

    Raises:
        FedpeftError: the lineage is no plain name: it comes from another participant and must not lead elsewhere.
    """
    if not LINEAGE.fullmatch(lineage):
        raise FedpeftError(
            f"the lineage {lineage!r:.60} is no plain name: install the same fedpeft version everywhere."
        )
    return lineages_folder(fl_ctx) / lineage


def lineages_folder(fl_ctx: FLContext) -> Path:
    """The folder that holds those of all lineages."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser() / fl_ctx.get_identity_name()
    return Path(fl_ctx.get_engine().get_workspace().get_root_dir()) / NAME


def prune(lineages: Path, current: str) -> None:
    """Drop what is neither among the newest `KEPT` lineages of the job of `current` nor younger than a day."""
    job = _job(current)
    own = sorted(path for path in lineages.glob("*") if path.name != current and _job(path.name) == job)
    for old in own[: -(KEPT - 1)]:
        with contextlib.suppress(FileNotFoundError):  # another job may drop it too
            if time.time() - old.stat().st_mtime > SECONDS_IN_USE:
                drop(old)


def _job(lineage: str) -> str:
    return lineage.rsplit("-", 3)[0]

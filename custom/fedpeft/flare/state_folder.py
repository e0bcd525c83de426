# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The folder for state that must outlive a job: the server's checkpoints, a site's own adapter and head.

A run directory belongs to one job id, and a job that resumes another one has a new id.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from nvflare.apis.fl_context import FLContext

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import drop
from fedpeft.core.run_names import STATE_VARIABLE
from fedpeft.core.state_lock import is_in_use

NAME = "fedpeft"
KEPT = 3
SECONDS_IN_USE = 24 * 3600  # a lineage with a round in this time may belong to a running job
LINEAGE = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")


def state_folder(fl_ctx: FLContext, lineage: str) -> Path:
    """`<participant's workspace>/fedpeft/<lineage>`, or `$FEDPEFT_STATE/<participant>/<lineage>` where that is set.

    Args:
        fl_ctx: of the participant.
        lineage: name that a job shares with those that resume it.

    Raises:
        FedpeftError: the lineage is not a plain name; it comes from another participant and must not leave the folder.
    """
    if not LINEAGE.fullmatch(lineage):
        raise FedpeftError(
            f"the lineage {lineage!r:.60} is not a plain name: install the same fedpeft version everywhere."
        )
    return lineages_folder(fl_ctx) / lineage


def lineages_folder(fl_ctx: FLContext) -> Path:
    """The parent folder of all lineages."""
    if chosen := os.environ.get(STATE_VARIABLE):
        return Path(chosen).expanduser() / fl_ctx.get_identity_name()
    return Path(fl_ctx.get_engine().get_workspace().get_root_dir()) / NAME


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

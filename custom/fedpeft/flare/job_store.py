# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's job store, which keeps with every finished job what its manifest says.

FLARE's status says how its processes ended, the manifest how the job ended; whoever may view a job can ask for both.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.job_def_manager import SimpleJobDefManager

from fedpeft.errors import FedpeftError
from fedpeft.flare.progress import GROUP
from fedpeft.flare.run_folder import NAME
from fedpeft.status.progress import FAILED, MANIFEST, Progress, read_progress

LONGEST = 2000  # characters of a reason in the job's meta data, which every list of jobs carries
MOST = 20  # rejected replies there


class JobStore(SimpleJobDefManager):
    """FLARE's own store, with the outcome of the manifest in the job's meta data under `fedpeft`."""

    def create(self, meta: dict, uploaded_content: str | bytes, fl_ctx: FLContext) -> dict[str, Any]:
        """Store a submitted job; an outcome that it brings along is dropped."""
        meta.pop(GROUP, None)
        return super().create(meta, uploaded_content, fl_ctx)

    def clone(self, from_jid: str, meta: dict, fl_ctx: FLContext) -> dict[str, Any]:
        """Store a copy of a job; the outcome of the first one is not its own."""
        meta.pop(GROUP, None)
        return super().clone(from_jid, meta, fl_ctx)

    def save_workspace(self, jid: str, data: bytes | str | list[str], fl_ctx: FLContext) -> Any:
        """Keep what a job left; FLARE calls this before it says that the job has finished."""
        if isinstance(data, list):
            self.update_meta(jid, {GROUP: outcome([Path(folder) for folder in data])}, fl_ctx)
        return super().save_workspace(jid, data, fl_ctx)


def outcome(folders: list[Path]) -> dict[str, Any]:
    """What the manifest in one of these folders says, as JSON; a job without one has failed."""
    run = next((path for folder in folders if (path := folder / NAME).is_dir()), None)
    try:
        progress = read_progress(run) if run else Progress()
        if not (run and (run / MANIFEST).is_file()):
            progress = replace(progress, state=FAILED, reason="the job ended before it wrote its manifest.")
    except FedpeftError:
        progress = Progress(state=FAILED, reason="its manifest or history is damaged.")
    shortened = replace(progress, reason=progress.reason[:LONGEST], rejected=progress.rejected[:MOST], ago=None)
    return asdict(replace(shortened, rejected=tuple(reason[:LONGEST] for reason in shortened.rejected)))

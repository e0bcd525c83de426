# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's job store, which adds the outcome from the manifest to every finished job, and a running job's progress.

FLARE's status is that of its processes, the manifest's that of the job; whoever may view a job can query both. FLARE
queries every component of a running job (`InfoCollector`) when an administrator runs `nvflare job stats`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.job_def_manager import SimpleJobDefManager
from nvflare.widgets.info_collector import InfoCollector

from fedpeft.core.errors import FedpeftError
from fedpeft.core.workspace import MANIFEST
from fedpeft.flare.folders import NAME, run_folder
from fedpeft.report.status import FAILED, Progress, read_progress

GROUP = "fedpeft"


def report_progress(event_type: str, fl_ctx: FLContext) -> None:
    """Add the progress from history.json to FLARE's statistics."""
    if event_type != InfoCollector.EVENT_TYPE_GET_STATS:
        return
    if collector := fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR):
        collector.set_info(GROUP, asdict(read_progress(run_folder(fl_ctx))))


MAX_LENGTH = 2000  # characters of a reason in the job's metadata, which every list of jobs includes
MAX_LISTED = 20  # rejected replies in the metadata


class JobStore(SimpleJobDefManager):
    """FLARE's store, with the manifest's outcome in the job's metadata under `fedpeft`."""

    def create(self, meta: dict, uploaded_content: str | bytes, fl_ctx: FLContext) -> dict[str, Any]:
        """Store a submitted job; remove an outcome from its metadata."""
        meta.pop(GROUP, None)
        return super().create(meta, uploaded_content, fl_ctx)

    def clone(self, from_jid: str, meta: dict, fl_ctx: FLContext) -> dict[str, Any]:
        """Store a copy of a job, without the outcome of the original."""
        meta.pop(GROUP, None)
        return super().clone(from_jid, meta, fl_ctx)

    def save_workspace(self, jid: str, data: bytes | str | list[str], fl_ctx: FLContext) -> Any:
        """Store a job's results and outcome; FLARE calls this before it sets the job to finished."""
        if isinstance(data, list):
            self.update_meta(jid, {GROUP: outcome([Path(folder) for folder in data])}, fl_ctx)
        return super().save_workspace(jid, data, fl_ctx)


def outcome(folders: list[Path]) -> dict[str, Any]:
    """Return the outcome in the manifest of one of these folders, as JSON; a job without a manifest has failed."""
    run = next((path for folder in folders if (path := folder / NAME).is_dir()), None)
    try:
        progress = read_progress(run) if run else Progress()
        if not (run and (run / MANIFEST).is_file()):
            progress = replace(progress, state=FAILED, reason="the job ended before it wrote its manifest.")
    except FedpeftError:
        progress = Progress(state=FAILED, reason="its manifest or history is damaged.")
    short = replace(progress, reason=progress.reason[:MAX_LENGTH], rejected=progress.rejected[:MAX_LISTED], ago=None)
    return asdict(replace(short, rejected=tuple(reason[:MAX_LENGTH] for reason in short.rejected)))

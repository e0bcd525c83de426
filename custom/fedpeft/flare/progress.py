# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Report a job's progress when an administrator runs `nvflare job stats`.

FLARE queries every component of a running job (`InfoCollector`); the administrator needs the right to view the job.
"""

from __future__ import annotations

from dataclasses import asdict

from nvflare.apis.fl_context import FLContext
from nvflare.widgets.info_collector import InfoCollector

from fedpeft.flare.folders import run_folder
from fedpeft.report.status.progress import read_progress

GROUP = "fedpeft"


def report_progress(event_type: str, fl_ctx: FLContext) -> None:
    """Add the progress from history.json to FLARE's statistics."""
    if event_type != InfoCollector.EVENT_TYPE_GET_STATS:
        return
    if collector := fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR):
        collector.set_info(GROUP, asdict(read_progress(run_folder(fl_ctx))))

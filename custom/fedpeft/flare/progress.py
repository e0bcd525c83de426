# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How far a job is, told by the server when an administrator asks with `nvflare job stats`.

FLARE asks every component of a running job (`InfoCollector`); only who may view the job is answered.
"""

from __future__ import annotations

from dataclasses import asdict

from nvflare.apis.fl_context import FLContext
from nvflare.widgets.info_collector import InfoCollector

from fedpeft.flare.run_folder import run_folder
from fedpeft.status.progress import read_progress

GROUP = "fedpeft"


def report_progress(event_type: str, fl_ctx: FLContext) -> None:
    """Answer FLARE's question for statistics with what history.json says."""
    if event_type != InfoCollector.EVENT_TYPE_GET_STATS:
        return
    if collector := fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR):
        collector.set_info(GROUP, asdict(read_progress(run_folder(fl_ctx))))

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The folder of one job at one participant; it outlives the simulator's processes."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.fl_context import FLContext

NAME = "fedpeft"


def run_folder(fl_ctx: FLContext) -> Path:
    """Return `<run directory>/fedpeft`, created if it is missing."""
    workspace = fl_ctx.get_engine().get_workspace()
    folder = Path(workspace.get_run_dir(fl_ctx.get_job_id())) / NAME
    folder.mkdir(parents=True, exist_ok=True)
    return folder

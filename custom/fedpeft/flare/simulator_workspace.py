# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Lock the simulator's workspace for one job, also if `nvflare simulator` started it.

FLARE clears the workspace before it loads a job, so a second run can only be ended before it computes.
"""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from fedpeft.core.workspace_lock import is_held_by_a_parent, take


def is_simulated(fl_ctx: FLContext) -> bool:
    """Whether FLARE's simulator runs this server; elsewhere every job has its own id."""
    return fl_ctx.get_job_id() == SimulatorConstants.JOB_NAME


def take_workspace(fl_ctx: FLContext) -> None:
    """Lock the simulator's workspace until this process ends; does nothing outside the simulator.

    Raises:
        FedpeftError: another run uses it.
    """
    if not is_simulated(fl_ctx):
        return
    workspace = Path(fl_ctx.get_engine().get_workspace().get_root_dir()).parent
    if not is_held_by_a_parent(workspace):
        take(workspace)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The folders of a job at one participant, and who submitted it: only its submitter may use what a job leaves there.

A run's folder belongs to one job id, and a job that resumes another one has a new id. So the server's checkpoints and a
site's own adapter and head, which must outlive a job, are in a folder of its lineage. FLARE's simulator clears its
workspace before it loads a job, so a second run there can only be ended before it computes.
"""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from fedpeft.core.locks import is_held_by_a_parent, take
from fedpeft.core.workspace import chosen_state

NAME = "fedpeft"


def run_folder(fl_ctx: FLContext) -> Path:
    """Return `<run directory>/fedpeft`, created if it is missing."""
    workspace = fl_ctx.get_engine().get_workspace()
    folder = Path(workspace.get_run_dir(fl_ctx.get_job_id())) / NAME
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def lineages_folder(fl_ctx: FLContext, participant: str = "") -> Path:
    """Return the parent folder of all lineages: `<workspace>/fedpeft`, or `$FEDPEFT_STATE/<participant>`.

    FLARE's name of the participant is that of the context if none is given.
    """
    if chosen := chosen_state():
        return chosen / (participant or fl_ctx.get_identity_name())
    return Path(fl_ctx.get_engine().get_workspace().get_root_dir()) / NAME


def is_simulated(fl_ctx: FLContext) -> bool:
    """Return whether FLARE's simulator runs this server; elsewhere every job has its own id."""
    return fl_ctx.get_job_id() == SimulatorConstants.JOB_NAME


def take_workspace(fl_ctx: FLContext) -> None:
    """Lock the simulator's workspace until this process ends, also if `nvflare simulator` started it."""
    if not is_simulated(fl_ctx):
        return
    workspace = Path(fl_ctx.get_engine().get_workspace().get_root_dir()).parent
    if not is_held_by_a_parent(workspace):
        take(workspace)


def submitter_of(fl_ctx: FLContext) -> str:
    """Return the submitter's name and organization, from the certificate by FLARE's server; empty in the simulator."""
    meta = fl_ctx.get_prop(FLContextKey.JOB_META) or {}
    name, organization = (meta.get(key.value) or "" for key in (JobMetaKey.SUBMITTER_NAME, JobMetaKey.SUBMITTER_ORG))
    return f"{name} ({organization})" if name or organization else ""

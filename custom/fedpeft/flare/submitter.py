# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Who submitted a job: what it leaves behind is theirs alone."""

from __future__ import annotations

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey


def submitter_of(fl_ctx: FLContext) -> str:
    """The name and organization that FLARE's server took from the submitter's certificate; empty in the simulator."""
    meta = fl_ctx.get_prop(FLContextKey.JOB_META) or {}
    name, organization = (meta.get(key.value) or "" for key in (JobMetaKey.SUBMITTER_NAME, JobMetaKey.SUBMITTER_ORG))
    return f"{name} ({organization})" if name or organization else ""

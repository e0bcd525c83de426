# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Components in a start-up kit's resources.json with which server and site check jobs before FLARE reads them."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.utils.app_deployer import AppDeployer

from fedpeft.core.text import limit_log_records
from fedpeft.flare.hardening.connections import guard_connections
from fedpeft.flare.hardening.jobs import guard_configurations, guard_deployments, guard_job_failures, guard_submissions
from fedpeft.flare.hardening.message_limits import limit_frames, limit_messages
from fedpeft.flare.hardening.requests import (
    check_job_id,
    guard_audit,
    guard_cell_requests,
    guard_job_requests,
    guard_origins,
    guard_requests,
)
from fedpeft.job.admission import admit_app
from fedpeft.job.strict_files import AdmissionError

logger = logging.getLogger(__name__)
NOT_DEPLOYED = "the job could not be deployed; this site's log says why."
# imported at the start: the first check of a job would take seconds longer, and FLARE's client waits only five
FIRST_CHECK = ("fedpeft.job.settings", "fedpeft.importance.lntk", "fedpeft.importance.saliency")


def _keep_from_other_users() -> None:
    """Keep other users of the machine from this process and those that it starts: from their files and sockets."""
    os.umask(0o077)
    guard_connections()


def _clean_what_is_written() -> None:
    """Let no other participant write lines of its own into log and audit trail."""
    limit_log_records()
    guard_audit()


class SubmissionGuard(FLComponent):
    """At the server, in its own process and in each job's: checks submitted jobs, and what sites request and report."""

    def __init__(self) -> None:
        super().__init__()
        _keep_from_other_users()
        _clean_what_is_written()
        guard_configurations()
        guard_submissions()
        guard_cell_requests()
        guard_origins()
        guard_job_requests()
        guard_job_failures()
        limit_frames()
        limit_messages()
        for module in FIRST_CHECK:
            importlib.import_module(module)


class AdmittedAppDeployer(AppDeployer):
    """At a site, as `app_deployer`: checks a job's archive before FLARE parses it, and refuses other requests."""

    def __init__(self) -> None:
        _keep_from_other_users()
        _clean_what_is_written()
        guard_configurations()
        guard_deployments()
        guard_requests()
        guard_cell_requests()
        guard_origins()
        limit_frames()
        limit_messages()

    def deploy(
        self,
        workspace: Workspace,
        job_id: str,
        job_meta: dict[str, Any],
        app_name: str,
        app_data: bytes,
        fl_ctx: FLContext,
    ) -> str | None:
        """Check and deploy an app; return the reason of a refusal, without value, path or exception text, or None."""
        try:
            admit_app(app_data, app_name, job_meta)
            check_job_id(job_id, workspace)
            return super().deploy(workspace, job_id, job_meta, app_name, app_data, fl_ctx)
        except AdmissionError as error:
            logger.error("a job of the server is refused: %s", error)
            return error.public
        except Exception:
            logger.exception("a job of the server could not be deployed")
            return NOT_DEPLOYED

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
from fedpeft.flare.hardening.jobs import guard_server, guard_site
from fedpeft.flare.hardening.requests import check_job_id
from fedpeft.job.admission import admit_app
from fedpeft.job.strict_files import AdmissionError

logger = logging.getLogger(__name__)
NOT_DEPLOYED = "the job could not be deployed; this site's log says why."
# imported at the start: the first check of a job would take seconds longer, and FLARE's client waits only five
FIRST_CHECK = ("fedpeft.job.settings", "fedpeft.importance.lntk", "fedpeft.importance.saliency")


def _keep_to_itself() -> None:
    """Keep other users of the machine from this process's files, and other participants from lines in its log."""
    os.umask(0o077)
    limit_log_records()


class SubmissionGuard(FLComponent):
    """At the server, in its own process and in each job's: checks submitted jobs, and what sites request and report."""

    def __init__(self) -> None:
        super().__init__()
        _keep_to_itself()
        guard_server()
        for module in FIRST_CHECK:
            importlib.import_module(module)


class AdmittedAppDeployer(AppDeployer):
    """At a site, as `app_deployer`: checks a job's archive before FLARE parses it, and refuses other requests."""

    def __init__(self) -> None:
        _keep_to_itself()
        guard_site()

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

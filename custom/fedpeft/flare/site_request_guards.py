# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Refuse requests of a server that read a site's machine or remove anything but a finished job's folder.

FLARE lets the sender of a request state whether it needs an authorization, and for whom: the server can thus run `cat`,
`ls` and `grep` at a site. It also creates a job's folder directly in the site's workspace, so that a job with the id
`local` or `fedpeft` would replace that folder.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.apis.workspace import Workspace
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import InfoCollectorTopic
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.info_coll_cmd import ClientInfoProcessor
from nvflare.private.fed.client.shell_cmd import ShellCommandProcessor
from nvflare.private.fed.client.sys_cmd import ReportEnvProcessor, SysInfoProcessor

from fedpeft.flare.function_guard import replace_function
from fedpeft.flare.run_folder import NAME
from fedpeft.job.admission.refusal import AdmissionError

logger = logging.getLogger(__name__)
REFUSED = "this site does not answer such requests."
KEPT = "this site keeps that folder."
DELETED = "the folder of the job is removed."


def guard_requests() -> None:
    """At a site: refuse requests that read its machine, and protect every folder that is not a finished job's."""
    replace_function(ShellCommandProcessor, "process", _refused)
    replace_function(ReportEnvProcessor, "process", _refused)
    replace_function(SysInfoProcessor, "process", _refused)
    replace_function(ClientInfoProcessor, "process", _without_errors)
    replace_function(ClientEngine, "delete_run", _of_finished_jobs)


def check_job_id(job_id: object, workspace: Workspace) -> None:
    """Refuse a job whose id names an existing folder.

    Raises:
        AdmissionError: the id is not a UUID, or a job with it has run here.
    """
    if not _is_uuid(job_id):
        raise AdmissionError(
            f"the job id {job_id!r:.60} is not a UUID, it could name a folder of the site", reason="meta"
        )
    if (Path(workspace.get_run_dir(job_id)) / NAME).exists():
        raise AdmissionError(f"a job {job_id} has run here, and its folder is kept", reason="meta")


def _is_uuid(text: object) -> bool:
    try:
        return isinstance(text, str) and str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _refused(process: Callable) -> Callable:
    def refuse(self: Any, req: AdminMessage, app_ctx: Any) -> AdminMessage:
        logger.warning("a request %s of the server is refused", req.topic)
        return error_reply(REFUSED)

    return refuse


def _without_errors(process: Callable) -> Callable:
    def answer(self: ClientInfoProcessor, req: AdminMessage, app_ctx: Any) -> AdminMessage:
        if req.topic == InfoCollectorTopic.SHOW_ERRORS:
            return error_reply(REFUSED)
        return process(self, req, app_ctx)

    return answer


def _of_finished_jobs(delete: Callable) -> Callable:
    def delete_run(self: ClientEngine, job_id: str) -> str:
        if not _is_uuid(job_id) or job_id in self.client_executor.run_processes:
            logger.warning("the server requests to remove %r, which is not the folder of a finished job", job_id)
            return KEPT
        delete(self, job_id)
        return DELETED

    return delete_run

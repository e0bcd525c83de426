# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""At the server: a site whose part of a job ends early costs the job that site alone; the quorum decides.

FLARE ends the whole job when one site cannot start its part, when a site's process of the job fails, and when a site is
lost while a finished job waits for it. Only jobs with a quorum are admitted, so there is no other kind to tell apart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.fuel.f3.cellnet.defs import ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import ERROR_MSG_PREFIX, CellMessageHeaderKeys, JobFailureMsgKey
from nvflare.private.fed.server import job_runner
from nvflare.private.fed.server.fed_server import FederatedServer

from fedpeft.flare.function_guard import replace_function

logger = logging.getLogger(__name__)
PART_ENDED = "fedpeft.part_ended"  # an event in the server's own process; its data are job, site and reason
REASONS = {
    ProcessExitCode.EXCEPTION: "by an error or a signal",
    ProcessExitCode.UNSAFE_COMPONENT: "because a component is not allowed there",
    ProcessExitCode.CONFIG_ERROR: "because its configuration cannot be used there",
    ProcessExitCode.INFRASTRUCTURE_ERROR: "while it started",
    JobReturnCode.ABORTED: "because it was killed or aborted",
}


def guard_job_failures() -> None:
    """In the server's own process: no site's report, silence or refusal to start fails a job."""
    replace_function(FederatedServer, "process_job_failure", _away_instead_of_failed)
    replace_function(FederatedServer, "_resolve_missing_client_outcome", _not_waited_for)
    replace_function(job_runner, "check_client_replies", _without_failed_starts)


def _away_instead_of_failed(report: Callable) -> Callable:
    def process_job_failure(self: FederatedServer, request: Message) -> Message:
        client = self.client_manager.clients.get(request.get_header(CellMessageHeaderKeys.TOKEN))
        payload = request.payload if isinstance(request.payload, dict) else {}
        job, code = payload.get(JobFailureMsgKey.JOB_ID), payload.get(JobFailureMsgKey.CODE)
        if client is None or not isinstance(code, int) or code not in REASONS:
            return report(self, request)
        jobs = self.engine.job_runner
        # a report of a job in which the site takes no part, or a second one, changes nothing
        if isinstance(job, str) and jobs.is_client_outcome_pending(job, client.name):
            jobs.resolve_client_outcome(job, client.name)
            _announce(self.engine, job, client.name, REASONS[code])
        return make_reply(ReturnCode.OK)

    return process_job_failure


def _announce(engine: Any, job: str, site: str, reason: str) -> None:
    logger.warning("the process of job %s at site %s ended %s: the quorum decides about the job", job, site, reason)
    with engine.new_context() as fl_ctx:
        data = {"job": job, "site": site, "reason": reason}
        fl_ctx.set_prop(FLContextKey.EVENT_DATA, data, private=True, sticky=False)
        engine.fire_event(PART_ENDED, fl_ctx)


def _not_waited_for(resolve: Callable) -> Callable:
    def resolve_missing_client_outcome(self: FederatedServer, client: Client, job_id: str, reason: str) -> None:
        self.engine.job_runner.resolve_client_outcome(job_id, client.name)

    return resolve_missing_client_outcome


def _without_failed_starts(check: Callable) -> Callable:
    def check_client_replies(
        replies: Sequence[Any], client_sites: list[str], command: str, strict: bool = False
    ) -> Any:
        for one in replies or ():
            if one.reply and str(one.reply.body).startswith(ERROR_MSG_PREFIX):
                logger.warning("site %s could not %s; its own log says why", one.client_name, command)
                one.reply = None  # as of a site that did not answer in time
        return check(replies, client_sites, command, strict)  # type: ignore[no-any-return]

    return check_client_replies

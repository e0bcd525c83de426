# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check jobs before FLARE reads them, and let a site whose part of a job ends early cost the job only that site.

FLARE 2.9 has no hook before its validator parses a submitted job, HOCON and YAML too, and HOCON reads files and URLs.
It ends a whole job when one site cannot start its part or has left before, when a site's process of the job fails, and
when a site is lost while a finished job waits for it. Only jobs with a quorum are admitted, so the quorum can decide.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import FLContextKey, SiteType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import Job
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.app_common.streamers.file_streamer import FileStreamer, _ChunkConsumer
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.fuel.f3.cellnet.defs import ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.hci.server.hci import AdminServer
from nvflare.fuel.utils.config import ConfigFormat, ConfigLoader
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.admin_defs import MsgHeader
from nvflare.private.admin_defs import ReturnCode as AdminReturnCode
from nvflare.private.defs import ERROR_MSG_PREFIX, CellMessageHeaderKeys, JobFailureMsgKey, TrainingTopic
from nvflare.private.fed.client import training_cmds
from nvflare.private.fed.server import job_runner
from nvflare.private.fed.server.admin import FedAdminServer
from nvflare.private.fed.server.fed_server import FederatedServer
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.server.message_send import ClientReply
from nvflare.private.fed_json_config import FedJsonConfigurator
from nvflare.private.scheduler_constants import ShareableHeader

from fedpeft.core.errors import FedpeftError
from fedpeft.flare.hardening import replace_function
from fedpeft.flare.hardening.connections import guard_connections
from fedpeft.flare.hardening.message_limits import limit_frames, limit_messages
from fedpeft.flare.hardening.requests import (
    guard_audit,
    guard_cell_requests,
    guard_job_requests,
    guard_origins,
    guard_requests,
)
from fedpeft.flare.returning_sites import PART_ENDED
from fedpeft.job.admission import admit_configuration, admit_submission
from fedpeft.job.strict_files import MAX_ARCHIVE, AdmissionError, check_archive

logger = logging.getLogger(__name__)
NOT_CHECKED = "the job could not be checked; the server's log says why."


class RefusedFormat(ConfigLoader):
    """Replaces FLARE's loaders of HOCON and YAML: raises an error instead of parsing."""

    def load_config(self, file_path: str) -> None:
        self._refuse()

    def load_config_from_str(self, config_str: str) -> None:
        self._refuse()

    def load_config_from_dict(self, config_dict: dict) -> None:
        self._refuse()

    def _refuse(self) -> None:
        raise ValueError("a configuration must be JSON: HOCON and YAML are not read here.")


def guard_configurations() -> None:
    """In every process: refuse HOCON and YAML, and check a job's configuration before FLARE expands or builds it."""
    for kind in (ConfigFormat.PYHOCON, ConfigFormat.OMEGACONF):
        ConfigFactory._fmt2Loader[kind] = RefusedFormat(kind)
    replace_function(FedJsonConfigurator, "_do_configure", _admit_then_configure)


def guard_submissions() -> None:
    """At the server: check a submitted archive before FLARE's validator opens it, limit its size, remove its upload."""
    replace_function(JobMetaValidator, "validate", _admit_then_validate)
    replace_function(AdminServer, "_process_upload", _process_and_remove_upload)
    replace_function(_ChunkConsumer, "consume", _refuse_large_uploads)


def guard_deployments() -> None:
    """At a site: check the size of a deployed archive before FLARE unpacks it."""
    replace_function(training_cmds, "unzip_all_from_bytes", _check_then_unzip)


def _admit_then_configure(configure: Callable, self: FedJsonConfigurator) -> None:
    role = "server" if self.is_server else "client"
    admit_configuration(role, self.config_data, f"config_fed_{role}.json")
    configure(self)


def _admit_then_validate(
    validate: Callable, self: JobMetaValidator, job_name: str, job_data: bytes | str
) -> tuple[bool, str, dict]:
    try:
        admit_submission(_archive(job_data), job_name)
    except AdmissionError as error:
        logger.warning("submitted job refused: %s", error)
        return False, error.public, {}
    except Exception:  # a job that cannot be checked is not admitted
        logger.exception("a submitted job could not be checked")
        return False, NOT_CHECKED, {}
    return validate(self, job_name, job_data)


def _archive(data: bytes | str) -> bytes:
    if isinstance(data, bytes):
        return data
    with open(data, "rb") as stream:
        return stream.read(MAX_ARCHIVE + 1)


def _process_and_remove_upload(process: Callable, self: AdminServer, stream_ctx: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return process(self, stream_ctx, *args, **kwargs)
    finally:
        if location := FileStreamer.get_file_location(stream_ctx):
            Path(location).unlink(missing_ok=True)


def _refuse_large_uploads(consume: Callable, self: _ChunkConsumer, shareable: Shareable, *args: Any) -> Any:
    if self.received_size > MAX_ARCHIVE:  # FLARE looks at the size when all of it is on the disk
        raise ValueError(f"an upload is larger than a job may be ({MAX_ARCHIVE:,} bytes).")
    return consume(self, shareable, *args)


def _check_then_unzip(unzip: Callable, data: bytes, folder: str | os.PathLike) -> None:
    check_archive(data)
    unzip(data, folder)


def guard_server() -> None:
    """Install all guards of the server, in its own process and in each job's."""
    _guard_participant()
    guard_submissions()
    guard_job_requests()
    guard_job_failures()


def guard_site() -> None:
    """Install all guards of a site."""
    _guard_participant()
    guard_deployments()
    guard_requests()


def _guard_participant() -> None:
    guard_connections()
    guard_audit()
    guard_configurations()
    guard_cell_requests()
    guard_origins()
    limit_frames()
    limit_messages()


def main() -> int:
    """Install all guards and check that they work."""
    guard_server()
    guard_site()
    for kind in (ConfigFormat.PYHOCON, ConfigFormat.OMEGACONF):
        if not isinstance(ConfigFactory.get_config_loader(kind), RefusedFormat):
            raise FedpeftError(f"FLARE still reads {kind.name}: install the version in constraints.txt.")
    return 0


RESOURCES = ShareableHeader.IS_RESOURCE_ENOUGH, ShareableHeader.RESOURCE_RESERVE_TOKEN
REASONS = {
    ProcessExitCode.EXCEPTION: "by an error or a signal",
    ProcessExitCode.UNSAFE_COMPONENT: "because a component is not allowed there",
    ProcessExitCode.CONFIG_ERROR: "because its configuration cannot be used there",
    ProcessExitCode.INFRASTRUCTURE_ERROR: "while it started",
    JobReturnCode.ABORTED: "because it was killed or aborted",
}


def guard_job_failures() -> None:
    """In the server's own process: let no site's report, silence, refusal to start or other reply fail a job."""
    replace_function(FederatedServer, "process_job_failure", _note_part_ended)
    replace_function(FederatedServer, "_resolve_missing_client_outcome", _stop_waiting_for_site)
    replace_function(job_runner.JobRunner, "_deploy_job", _deploy_without_gone_sites)
    replace_function(job_runner, "check_client_replies", _drop_failed_starts)
    replace_function(FedAdminServer, "send_requests", _drop_unreadable_replies)


def _note_part_ended(report: Callable, self: FederatedServer, request: Message) -> Message:
    """Take a site's report that its part of a job failed as the end of that part, not of the job."""
    client = self.client_manager.clients.get(request.get_header(CellMessageHeaderKeys.TOKEN))
    if client is None or not isinstance(request.payload, dict):
        return report(self, request)  # which refuses it
    job, code = (request.payload.get(key) for key in (JobFailureMsgKey.JOB_ID, JobFailureMsgKey.CODE))
    jobs = self.engine.job_runner
    # a report of a job in which the site takes no part, or a second one, changes nothing
    if isinstance(job, str) and jobs.is_client_outcome_pending(job, client.name):
        jobs.resolve_client_outcome(job, client.name)
        if type(code) is int and code in REASONS:  # FLARE takes 103.0 for 103 and ends the job
            _announce_part_ended(self.engine, job, client.name, REASONS[code])
    return make_reply(ReturnCode.OK)


def _announce_part_ended(engine: Any, job: str, site: str, reason: str) -> None:
    logger.warning("the process of job %s at site %s ended %s: the quorum decides about the job", job, site, reason)
    with engine.new_context() as fl_ctx:
        data = {"job": job, "site": site, "reason": reason}
        fl_ctx.set_prop(FLContextKey.EVENT_DATA, data, private=True, sticky=False)
        engine.fire_event(PART_ENDED, fl_ctx)


def _stop_waiting_for_site(resolve: Callable, self: FederatedServer, client: Client, job_id: str, reason: str) -> None:
    self.engine.job_runner.resolve_client_outcome(job_id, client.name)


def _deploy_without_gone_sites(
    deploy: Callable, self: job_runner.JobRunner, job: Job, sites: Mapping[str, Any], fl_ctx: FLContext
) -> tuple[str, list[str]]:
    """Count a site that left after the scheduler asked it as one where the deployment failed, if enough are left."""
    known = fl_ctx.get_engine().get_client_from_name
    gone = [site for site in sites if site != SiteType.SERVER and known(site) is None]
    left = {site: info for site, info in sites.items() if site not in gone}
    if not gone or set(gone) & set(job.required_sites or ()) or len(left) - 1 < (job.min_sites or 0):
        return deploy(self, job, sites, fl_ctx)  # type: ignore[no-any-return]
    logger.warning("job %s is deployed without %s, which left: the quorum decides", job.job_id, ", ".join(gone))
    number, failed = deploy(self, job, left, fl_ctx)
    return number, [*failed, *gone]


def _drop_failed_starts(
    check: Callable, replies: Sequence[Any], client_sites: list[str], command: str, strict: bool = False
) -> Any:
    for answer in replies or ():
        if answer.reply and not _started(answer.reply):
            logger.warning("site %s could not %s; its own log says why", answer.client_name, command)
            answer.reply = None  # as of a site that did not answer in time
    answered = {answer.client_name for answer in replies or ()}
    gone = [ClientReply("", site, None, None) for site in client_sites if site not in answered] if replies else []
    return check([*(replies or ()), *gone], client_sites, command, strict)  # type: ignore[no-any-return]


def _started(reply: AdminMessage) -> bool:
    code = reply.get_header(MsgHeader.RETURN_CODE, AdminReturnCode.OK)
    return code == AdminReturnCode.OK and not str(reply.body).startswith(ERROR_MSG_PREFIX)


def _drop_unreadable_replies(send: Callable, self: FedAdminServer, *args: Any, **kwargs: Any) -> Sequence[Any]:
    replies: Sequence[Any] = send(self, *args, **kwargs)
    for answer in replies:
        if answer.reply is not None and not _readable(answer):
            logger.warning("site %s sent a reply that cannot be read", answer.client_name)
            answer.reply = None  # as of a site that did not answer in time
    return replies


def _readable(answer: ClientReply) -> bool:
    """Return whether FLARE reads a site's reply, which may be anything, without an error."""
    try:
        body, code = answer.reply.body, answer.reply.get_header(MsgHeader.RETURN_CODE, AdminReturnCode.OK)
        if not isinstance(answer.reply, AdminMessage) or not isinstance(code, str):
            return False
        if answer.request.topic != TrainingTopic.CHECK_RESOURCE or code != AdminReturnCode.OK:
            return True
        enough, token = (body.get_header(name) for name in RESOURCES)
        return isinstance(enough, bool) and isinstance(token, str)
    except Exception:
        return False


if __name__ == "__main__":
    sys.exit(main())

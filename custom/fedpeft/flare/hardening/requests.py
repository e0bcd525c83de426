# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Requests that no site or server may make, and messages under another's name.

FLARE registers its network diagnosis in every process, without an authorization: with one small request the receiver
allocates as much memory as the sender names (`speed`), sends messages to others (`stress`, `bulk_test`, `change_root`),
or says what its process and connections are (`process_info`, `config_vars`, `conns`). fedpeft needs none of it: subnet
heartbeats have no monitor here, and `stop` is for relays, which are processes of their own.

At the server FLARE lets whoever is connected abort a job at its process, set its final status, and fire any event in
it, for instance the fatal error that ends it. Its streams of objects have no authorization either: whoever is
connected opens files that nothing closes, or, with the receiver of logs in FLARE's own kits, writes files of the server
under names that the sender chooses. An administrator's upload is a stream: here only an administrator with a session
sends one, and a job's process takes none.

At a site FLARE lets the sender of a request state whether it needs an authorization, and for whom: the server can thus
run `cat`, `ls` and `grep` there. It also creates a job's folder directly in the site's workspace, so that a job with
the id `local` or `fedpeft` would replace that folder.

FLARE binds the name of a connection to the certificate of its other end. The origin of a message is a header that the
sender writes, and behind a relay it differs from the connection's name. FLARE checks it at the server for messages
with a token, against the origin that the site registered with; a registration has no token, and a return message none
that a relay could check. Names are paths, so here the origin must be the connection's name or lie below it:

    connection of     may send as
    south             south, and its processes south.JOB
    relay             relay, and what is behind it: relay.north, relay.north.JOB
    server            anybody: it has checked what it passes on; likewise a site's own relay and a process's own site

Through the server FLARE passes on messages from any site to any other: it can train there, end a job's process or the
site itself. Sites have nothing to say to each other here: a message is from the server or to it, or stays on one path
(a relay, its site, the site's process). FLARE would also connect, without TLS, to whatever address a message names,
and take whoever listens there for the server or another site; and each of its threads waits an hour for the certificate
of a sender of encrypted messages. Neither is needed, nor the end of a stream announced by anyone but its receiver, nor
messages in bulk, which FLARE collects without a limit, nor certificates by message: FLARE keeps those it is sent, and
closes the connection over which a wrong one came, which may be that of others. At a farewell FLARE forgets whoever sits
at the other end of the connection, so it counts only from there.

The server signs what a client sends for a challenge, and with the same key the tokens of clients. Here it signs only
random ids for a challenge, so that nobody gets a token signed. An administrator, whose certificate has a role, cannot
register as a site.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.x509 import NameOID
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_constant import ReturnCode as TaskReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.apis.shareable import make_reply as make_shareable_reply
from nvflare.apis.workspace import Workspace
from nvflare.fuel.f3.cellnet.core_cell import _SM_CHANNEL, _TOPIC_BULK, CertificateExchanger, CoreCell
from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    IdentityChallengeKey,
    MessageHeaderKey,
    MessagePropKey,
    ReturnCode,
)
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.net_agent import NetAgent
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.sec.audit import Auditor
from nvflare.lighter.utils import load_crt_chain_bytes
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import ERROR_MSG_PREFIX, CellMessageHeaderKeys, ClientType, InfoCollectorTopic
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.info_coll_cmd import ClientInfoProcessor
from nvflare.private.fed.client.shell_cmd import ShellCommandProcessor
from nvflare.private.fed.client.sys_cmd import ReportEnvProcessor, SysInfoProcessor
from nvflare.private.fed.server.client_manager import ClientManager
from nvflare.private.fed.server.fed_server import FederatedServer
from nvflare.private.fed.server.server_command_agent import ServerCommandAgent
from nvflare.private.fed.server.server_commands import ServerCommands
from nvflare.private.fed.server.server_engine import ServerEngine
from nvflare.private.stream_runner import PREFIX as STREAMS
from nvflare.widgets.fed_event import ServerFedEventRunner

from fedpeft.core.text import one_line
from fedpeft.flare.folders import NAME
from fedpeft.flare.hardening import replace_function
from fedpeft.job.strict_files import AdmissionError

logger = logging.getLogger(__name__)
NO_DIAGNOSIS = "this process does not answer such requests."
HANDLERS = tuple(sorted(name for name in vars(NetAgent) if name.startswith("_do_")))


def guard_cell_requests() -> None:
    """Refuse all requests of FLARE's network diagnosis; to be called before the process has its network agent."""
    for name in HANDLERS:
        replace_function(NetAgent, name, _refuse_diagnosis)


STOPS = ("_do_stop", "_do_stop_cell")


def guard_relay_requests() -> None:
    """In a relay: refuse network diagnosis as everywhere, but let the server stop the relay: nobody else can."""
    for name in HANDLERS:
        replace_function(NetAgent, name, _stop_only_for_server if name in STOPS else _refuse_diagnosis)


def _stop_only_for_server(handler: Callable, self: NetAgent, request: Message) -> Message | None:
    if request.get_header(MessageHeaderKey.ORIGIN) != FQCN.ROOT_SERVER:
        return _refuse_diagnosis(handler, self, request)
    return handler(self, request)  # type: ignore[no-any-return]


def _refuse_diagnosis(handler: Callable, self: NetAgent, request: Message) -> Message:
    return _refusal(request, ReturnCode.INVALID_REQUEST, NO_DIAGNOSIS)


NOT_FROM_A_SITE = "only the server's own processes may request this."
NO_SESSION = "only an administrator with a session may send this."
ADMIN_MARK = "@"  # is in the name of every administrator, and of no site
MACHINES = ("client", "server", "relay")  # what `nvflare cert` writes where the certificates of people have a role
NO_TOKEN = "that is no id and no token of this server."
NO_SITE = "the certificate is an administrator's, not a site's."
NO_STREAM = "the process of a job takes no such stream."
NOT_OWN = "the message names another sender, or its task or audit event has no proper name."
MAX_NAME, MAX_FIELD = 200, 1000  # characters
NAMES = re.compile(r"[\w.: -]*")  # of tasks, jobs and return codes
NO_BRACKETS = str.maketrans("[]", "()")  # which set the fields of an audit trail apart


def guard_job_requests() -> None:
    """In the server's own process and in each job's: refuse what a site has no reason to send."""
    replace_function(FederatedServer, "_validate_auth_headers", _refuse_servers_name)
    replace_function(FederatedServer, "_listen_command", _listen_to_jobs_process_only)
    replace_function(ServerCommandAgent, "_execute_command", _refuse_commands_of_sites)
    replace_function(ServerEngine, "_handle_aux_message", _refuse_streams_without_session)
    replace_function(FederatedServer, "client_challenge", _sign_random_ids_only)
    replace_function(ClientManager, "authenticated_client", _refuse_role)
    replace_function(ClientManager, "heartbeat", _refuse_admin)
    replace_function(ServerCommandAgent, "_aux_communicate", _refuse_streams_and_other_names)
    replace_function(ServerFedEventRunner, "_receive", _refuse_event)


def _refusal(request: Message, code: str = ReturnCode.UNAUTHENTICATED, reason: str = NOT_FROM_A_SITE) -> Message:
    topic, sender = (request.get_header(key) for key in (MessageHeaderKey.TOPIC, MessageHeaderKey.ORIGIN))
    logger.warning("a request %.40r of %.80r is refused", topic, sender)
    return make_reply(code, reason)


def _refuse_servers_name(validate: Callable, self: FederatedServer, message: Message) -> Message | None:
    """Refuse a message with the server's name from another connection, and tokens that are no random ids."""
    connected = message.get_prop(MessagePropKey.ENDPOINT)
    if _is_server(message.get_header(MessageHeaderKey.ORIGIN)):
        return validate(self, message) if connected and _is_server(connected.name) else _refusal(message)
    token, name = (message.get_header(key) for key in (CellMessageHeaderKeys.TOKEN, CellMessageHeaderKeys.CLIENT_NAME))
    asserter = self._get_id_asserter()
    own = asserter.cn if asserter else FQCN.ROOT_SERVER
    if token is not None and not (_is_uuid(token) and isinstance(name, str) and name != own and not _is_server(name)):
        return _refusal(message, reason=NO_TOKEN)
    return validate(self, message)


def _refuse_admin(heartbeat: Callable, self: ClientManager, token: str, client_name: str, *arguments: Any) -> Any:
    if ADMIN_MARK in str(client_name):  # FLARE would take them for a site that has come back
        logger.warning("a heartbeat of %.80r is refused", client_name)
        return False
    return heartbeat(self, token, client_name, *arguments)


def _is_role(name: object) -> bool:
    """Return whether a certificate has the role of a person."""
    return bool(name) and name not in MACHINES


def _sign_random_ids_only(challenge: Callable, self: FederatedServer, request: Message) -> Message:
    if not _is_uuid(request.get_header(IdentityChallengeKey.NONCE)):
        return _refusal(request, reason=NO_TOKEN)
    return challenge(self, request)  # type: ignore[no-any-return]


def _refuse_role(authenticate: Callable, self: ClientManager, request: Message, fl_ctx: FLContext, kind: str) -> Any:
    """Refuse the registration of a site with the certificate of a person."""
    payload = request.payload
    chain = payload.get(IdentityChallengeKey.CERT) if isinstance(payload, Shareable) else None
    if chain and kind != ClientType.ADMIN:
        subject = load_crt_chain_bytes(chain)[0].subject
        if any(_is_role(one.value) for one in subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)):
            logger.warning("a registration of %.80s as a %.20s is refused", subject.rfc4514_string(), kind)
            fl_ctx.set_prop(FLContextKey.UNAUTHENTICATED, NO_SITE, sticky=False)
            return None
    return authenticate(self, request, fl_ctx, kind)


def _is_server(cell: Any) -> bool:
    return isinstance(cell, str) and _is_at_or_below(cell, FQCN.ROOT_SERVER)


def _listen_to_jobs_process_only(listen: Callable, self: FederatedServer, request: Message) -> Message:
    own = FQCN.join([FQCN.ROOT_SERVER, str(request.get_header(CellMessageHeaderKeys.JOB_ID))])
    if request.get_header(MessageHeaderKey.ORIGIN) != own:
        return _refusal(request)
    return listen(self, request)


def _refuse_commands_of_sites(execute: Callable, self: ServerCommandAgent, request: Message) -> Message:
    of_a_site = request.get_header(MessageHeaderKey.TOPIC) in ServerCommands.client_request_commands_names
    if not of_a_site and request.get_header(MessageHeaderKey.ORIGIN) != FQCN.ROOT_SERVER:
        return _refusal(request)
    client = self._get_client(request.get_header(CellMessageHeaderKeys.TOKEN)) if of_a_site else None
    if client and not _names_itself_and_a_task(request.payload, client.name):
        return _refusal(request, reason=NOT_OWN)
    return execute(self, request)


def _names_itself_and_a_task(content: Any, site: str) -> bool:
    """Return whether a site's message is under its own name, and its other texts for log and audit trail are names."""
    try:
        peer = content.get_peer_context()
        task, event = (content.get_header(key) for key in (FLContextKey.TASK_NAME, ReservedHeaderKey.AUDIT_EVENT_ID))
        cookies = (content.get_cookie(name) for name in (FLContextKey.TASK_ID, ReservedHeaderKey.WORKFLOW))
        texts = (task, *cookies, content.get_return_code(), peer.get_job_id())
        return peer.get_identity_name() == site and all(map(_is_name, texts)) and (not event or _is_uuid(event))
    except (AttributeError, TypeError, ValueError):  # it is no message about a task
        return False


def _is_name(text: object) -> bool:
    return text is None or (isinstance(text, str) and len(text) <= MAX_NAME and bool(NAMES.fullmatch(text)))


def guard_audit() -> None:
    """Let no text of another participant end a line of the audit trail, or look like one of its fields."""
    for name in ("add_event", "add_job_event"):
        replace_function(Auditor, name, _write_plain_fields)


def _write_plain_fields(add: Callable, self: Auditor, *fields: Any, **named: Any) -> str:
    plain = (_field(value) for value in fields)
    return add(self, *plain, **{name: _field(value) for name, value in named.items()})  # type: ignore[no-any-return]


def _field(value: Any) -> str:
    return one_line(str(value), max_length=MAX_FIELD).translate(NO_BRACKETS) if value else ""


def _is_stream(request: Message) -> bool:
    return str(request.get_header(MessageHeaderKey.TOPIC)).startswith(STREAMS)


def _refuse_streams_without_session(handle: Callable, self: ServerEngine, request: Message) -> Message:
    if _is_stream(request) and request.get_header(MessageHeaderKey.ORIGIN) not in _cells_with_session(self.server):
        return _refusal(request, reason=NO_SESSION)
    return handle(self, request)  # type: ignore[no-any-return]


def _cells_with_session(server: FederatedServer) -> set[str]:
    """Return the cells with a logged-in administrator: FLARE lets every certificate log in."""
    manager = server.admin_server and server.admin_server.sess_mgr
    return (
        {session.origin_fqcn for session in manager.get_sessions() if _is_role(session.user_role)} if manager else set()
    )


def _refuse_streams_and_other_names(communicate: Callable, self: ServerCommandAgent, request: Message) -> Message:
    """Refuse streams, and a message under another name, by which FLARE would take an absent site for present."""
    if _is_stream(request):
        return _refusal(request, reason=NO_STREAM)
    origin = request.get_header(MessageHeaderKey.ORIGIN)
    if not (_is_server(origin) or _is_under_own_name(request.payload, str(origin))):
        return _refusal(request, reason=NOT_OWN)
    return communicate(self, request)  # type: ignore[no-any-return]


def _is_under_own_name(content: Any, origin: str) -> bool:
    """Return whether an auxiliary message names no other sender than its origin, a site's process or one of a job."""
    try:
        props = content.get_peer_props() if isinstance(content, Shareable) else None
        if not isinstance(props, dict):
            return True  # FLARE refuses it
        named = props.get(ReservedKey.IDENTITY_NAME)
        texts = (props.get(ReservedKey.RUN_NUM), content.get_header(ReservedHeaderKey.TASK_ID))
        return (named is None or named in FQCN.split(origin)[-2:]) and all(map(_is_name, texts))
    except ValueError:  # its headers are none
        return False


def _refuse_event(
    receive: Callable, self: ServerFedEventRunner, topic: str, request: Shareable, fl_ctx: FLContext
) -> Shareable:
    logger.warning("an event that a site sent is refused: fedpeft uses none")
    return make_shareable_reply(TaskReturnCode.BAD_REQUEST_DATA)


NOT_AT_A_SITE = "this site does not answer such requests."
KEPT = "this site keeps that folder."
DELETED = "the folder of the job is removed."


def guard_requests() -> None:
    """At a site: refuse requests that read its machine, and protect every folder that is not a finished job's."""
    replace_function(ShellCommandProcessor, "process", _refuse_request)
    replace_function(ReportEnvProcessor, "process", _refuse_request)
    replace_function(SysInfoProcessor, "process", _refuse_request)
    replace_function(ClientInfoProcessor, "process", _withhold_errors)
    replace_function(ClientEngine, "delete_run", _remove_finished_jobs_only)
    replace_function(ClientEngine, "start_app", _raise_if_not_started)


def check_job_id(job_id: object, workspace: Workspace) -> None:
    """Refuse a job whose id is not a UUID, or names the folder of a job that has run here."""
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


def _refuse_request(process: Callable, self: Any, req: AdminMessage, app_ctx: Any) -> AdminMessage:
    logger.warning("a request %s of the server is refused", req.topic)
    return error_reply(NOT_AT_A_SITE)


def _withhold_errors(process: Callable, self: ClientInfoProcessor, req: AdminMessage, app_ctx: Any) -> AdminMessage:
    if req.topic == InfoCollectorTopic.SHOW_ERRORS:
        return error_reply(NOT_AT_A_SITE)
    return process(self, req, app_ctx)


def _raise_if_not_started(start: Callable, self: ClientEngine, *arguments: Any, **named: Any) -> str:
    """Raise FLARE's answer if it is an error: only then does FLARE free the GPUs that the job was given."""
    answer = str(start(self, *arguments, **named))
    if answer.startswith(ERROR_MSG_PREFIX):
        raise RuntimeError(answer)
    return answer


def _remove_finished_jobs_only(delete: Callable, self: ClientEngine, job_id: str) -> str:
    if not _is_uuid(job_id) or job_id in self.client_executor.run_processes:
        logger.warning("the server requests to remove %r, which is not the folder of a finished job", job_id)
        return KEPT
    delete(self, job_id)
    return DELETED


def guard_origins() -> None:
    """In every process: drop messages with a forged origin, and messages from one site to another."""
    replace_function(CoreCell, "_process_received_msg", _drop_if_forged)
    replace_function(CoreCell, "_add_adhoc_connector", _ignore_offered_connection)
    replace_function(TxTask, "handle_ack", _ignore_news_of_other_receivers)
    replace_function(CertificateExchanger, "exchange_certificate", _refuse_certificate_exchange)


def accepts_origin(origin: object, *, peer: str, here: str) -> bool:
    """Return whether the cell `here` takes a message with this origin from `peer`, the other end of a connection."""
    if peer == FQCN.ROOT_SERVER or _is_at_or_below(here, peer):
        return True
    return isinstance(origin, str) and _is_at_or_below(origin, peer)


def may_address(origin: object, destination: object) -> bool:
    """Return whether a cell may send to another: to or from the server, or along one path."""
    if not (isinstance(origin, str) and isinstance(destination, str)):
        return False
    if _is_server(origin) or _is_server(destination):
        return True
    return _is_at_or_below(origin, destination) or _is_at_or_below(destination, origin)


def _ignore_offered_connection(add: Callable, self: CoreCell, to_cell: str, url: str) -> None:
    logger.warning("%.80r offers a connection, which is not used", to_cell)


def _refuse_certificate_exchange(exchange: Callable, self: CertificateExchanger, target: str) -> bytes:
    """Refuse to fetch a certificate, which FLARE does when a peer encrypts a message or wants an encrypted answer."""
    raise RuntimeError(f"no certificate of {target!r:.80} is asked for: TLS encrypts the connections.")


def _ignore_news_of_other_receivers(handle: Callable, self: TxTask, message: Message) -> None:
    if (origin := message.get_header(MessageHeaderKey.ORIGIN)) != self.target:
        logger.warning("%.80r says what became of a stream to %.80r: that is ignored", origin, self.target)
        return
    handle(self, message)


def _is_at_or_below(name: str, other: str) -> bool:
    path, above = FQCN.split(name), FQCN.split(other)
    return path[: len(above)] == above


def _drop_if_forged(process: Callable, self: CoreCell, endpoint: Endpoint, connection: Any, message: Message) -> None:
    """Drop a message with a forged origin, to another site, encrypted or in bulk, a certificate, another's farewell."""
    origin = message.get_header(MessageHeaderKey.ORIGIN)
    if not accepts_origin(origin, peer=endpoint.name, here=self.my_info.fqcn):
        logger.warning("a message of %.80r is dropped: it says that it comes from %.80r", endpoint.name, origin)
        return
    if not may_address(origin, destination := message.get_header(MessageHeaderKey.DESTINATION)):
        logger.warning("a message of %.80r to %.80r is dropped: sites send only to the server", origin, destination)
        return
    if message.get_header(MessageHeaderKey.ENCRYPTED):
        logger.warning("an encrypted message of %.80r is dropped: TLS encrypts the connections", origin)
        return
    channel, topic = (message.get_header(key) for key in (MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC))
    if (channel, topic) == (CellChannel.CELLNET, _TOPIC_BULK):
        logger.warning("messages in bulk of %.80r are dropped: nobody here sends them", origin)
        return
    if channel == _SM_CHANNEL:
        logger.warning("a certificate of %.80r is dropped: TLS encrypts the connections", origin)
        return
    between = (origin, destination) == (endpoint.name, self.my_info.fqcn)
    if (channel, topic) == (CellChannel.CELLNET, CellChannelTopic.Bye) and not between:
        logger.warning("a farewell of %.80r to %.80r is dropped: it is for neighbours", origin, destination)
        return
    process(self, endpoint, connection, message)

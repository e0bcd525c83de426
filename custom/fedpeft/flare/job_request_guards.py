# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""At the server: no site steers or ends a job by a request that only the server's own processes send.

FLARE lets whoever is connected abort a job at its process, set its final status, and fire any event in it, for instance
the fatal error that ends it. It binds the name of a connection to its certificate, but not the origin that a message
names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from nvflare.apis.fl_constant import ReturnCode as TaskReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.shareable import make_reply as make_shareable_reply
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys
from nvflare.private.fed.server.fed_server import FederatedServer
from nvflare.private.fed.server.server_command_agent import ServerCommandAgent
from nvflare.private.fed.server.server_commands import ServerCommands
from nvflare.widgets.fed_event import ServerFedEventRunner

from fedpeft.flare.function_guard import replace_function

logger = logging.getLogger(__name__)
REFUSED = "only the server's own processes may request this."


def guard_job_requests() -> None:
    """In the server's own process and in each job's: refuse what a site has no reason to send."""
    replace_function(FederatedServer, "_validate_auth_headers", _without_the_servers_name)
    replace_function(FederatedServer, "_listen_command", _of_the_jobs_own_process)
    replace_function(ServerCommandAgent, "_execute_command", _of_the_server_or_a_task)
    replace_function(ServerFedEventRunner, "_receive", _no_event)


def _refused(request: Message, return_code: str) -> Message:
    topic, sender = (request.get_header(key) for key in (MessageHeaderKey.TOPIC, MessageHeaderKey.ORIGIN))
    logger.warning("a request %.40r of %.80r is refused", topic, sender)
    return make_reply(return_code, REFUSED)


def _without_the_servers_name(validate: Callable) -> Callable:
    def validate_auth_headers(self: FederatedServer, message: Message) -> Message | None:
        connected = message.get_prop(MessagePropKey.ENDPOINT)
        if _at_server(message.get_header(MessageHeaderKey.ORIGIN)) and not (connected and _at_server(connected.name)):
            return _refused(message, ReturnCode.UNAUTHENTICATED)
        return validate(self, message)

    return validate_auth_headers


def _at_server(cell: Any) -> bool:
    return isinstance(cell, str) and FQCN.split(cell)[0] == FQCN.ROOT_SERVER


def _of_the_jobs_own_process(listen: Callable) -> Callable:
    def listen_command(self: FederatedServer, request: Message) -> Message:
        own = FQCN.join([FQCN.ROOT_SERVER, str(request.get_header(CellMessageHeaderKeys.JOB_ID))])
        if request.get_header(MessageHeaderKey.ORIGIN) != own:
            return _refused(request, ReturnCode.UNAUTHENTICATED)
        return listen(self, request)

    return listen_command


def _of_the_server_or_a_task(execute: Callable) -> Callable:
    def execute_command(self: ServerCommandAgent, request: Message) -> Message:
        of_a_site = request.get_header(MessageHeaderKey.TOPIC) in ServerCommands.client_request_commands_names
        if not of_a_site and request.get_header(MessageHeaderKey.ORIGIN) != FQCN.ROOT_SERVER:
            return _refused(request, ReturnCode.UNAUTHENTICATED)
        return execute(self, request)

    return execute_command


def _no_event(receive: Callable) -> Callable:
    def refuse(self: ServerFedEventRunner, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        logger.warning("an event that a site sent is refused: fedpeft uses none")
        return make_shareable_reply(TaskReturnCode.BAD_REQUEST_DATA)

    return refuse

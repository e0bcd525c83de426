# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""No process of a site or server answers FLARE's network diagnosis.

FLARE registers it in every process, without an authorization: with one small request the receiver allocates as much
memory as the sender names (`speed`), sends messages to others (`stress`, `bulk_test`, `change_root`), or says what its
process and connections are (`process_info`, `config_vars`, `conns`). fedpeft needs none of it: subnet heartbeats have
no monitor here, and `stop` is for relays, which are processes of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.net_agent import NetAgent
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message

from fedpeft.flare.function_guard import replace_function

logger = logging.getLogger(__name__)
REFUSED = "this process does not answer such requests."
HANDLERS = tuple(sorted(name for name in vars(NetAgent) if name.startswith("_do_")))


def guard_cell_requests() -> None:
    """Refuse all requests of FLARE's network diagnosis; to be called before the process has its network agent."""
    for name in HANDLERS:
        replace_function(NetAgent, name, _refused)


def _refused(handler: Callable) -> Callable:
    def refuse(self: NetAgent, request: Message) -> Message:
        topic, sender = (request.get_header(key) for key in (MessageHeaderKey.TOPIC, MessageHeaderKey.ORIGIN))
        logger.warning("a request %.40r of %.80r is refused", topic, sender)
        return make_reply(ReturnCode.INVALID_REQUEST, REFUSED)

    return refuse

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Messages whose origin does not fit the participant that sends them are dropped.

FLARE binds the name of a connection to the certificate of its other end. The origin of a message is a header that the
sender writes, and behind a relay it differs from the connection's name. FLARE checks it at the server for messages
with a token, against the origin that the site registered with; a registration has no token, nor has a return message
one that a relay could check. Names are paths, so here the origin must be that of the connection or lie below it:

    connection of     may send as
    south             south, and its processes south.JOB
    relay             relay, and what is behind it: relay.north, relay.north.JOB
    server            anybody: what it passes on it has checked; likewise a site's own relay and a process's own site
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message

from fedpeft.flare.hardening import replace_function

logger = logging.getLogger(__name__)


def guard_origins() -> None:
    """In every process: drop messages that name another origin than their sender has."""
    replace_function(CoreCell, "_process_received_msg", _of_its_sender)


def fits(origin: object, *, peer: str, here: str) -> bool:
    """Return whether a cell can pass on a message of this origin.

    Args:
        origin: as the message says.
        peer: name of the cell at the other end of the connection.
        here: name of the cell that received it.
    """
    if peer == FQCN.ROOT_SERVER or _at_or_below(here, peer):
        return True
    return isinstance(origin, str) and _at_or_below(origin, peer)


def _at_or_below(name: str, other: str) -> bool:
    path, above = FQCN.split(name), FQCN.split(other)
    return path[: len(above)] == above


def _of_its_sender(process: Callable, self: CoreCell, endpoint: Endpoint, connection: Any, message: Message) -> None:
    origin = message.get_header(MessageHeaderKey.ORIGIN)
    if not fits(origin, peer=endpoint.name, here=self.my_info.fqcn):
        logger.warning("a message of %.80r is dropped: it says that it comes from %.80r", endpoint.name, origin)
        return
    process(self, endpoint, connection, message)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Accept connections without TLS from this machine only where they are this user's.

FLARE's processes of a site or server connect to their parent over the loopback interface, without TLS and without a
password: whoever connects there may start and abort jobs as the server does. On Linux the kernel's table of connections
says whose the other end is; elsewhere nothing does, and nothing is checked.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer

from fedpeft.flare.function_guard import replace_function

logger = logging.getLogger(__name__)
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = "01"  # a connection that its process has closed is listed as root's
Address = tuple[str, int]


def guard_local_connections() -> None:
    """Refuse other users of this machine in every listener of this process that has no TLS."""
    if sys.platform == "linux":
        replace_function(TcpStreamServer, "verify_request", _of_this_user)


def owner(peer: Address, here: Address) -> int | None:
    """Return the user id of the process at the other end of a connection within this machine; None: there is none.

    Args:
        peer: address and port of the other end.
        here: address and port of this end.
    """
    for table in TABLES:
        if not table.exists():  # a kernel without IPv6
            continue
        for line in table.read_text().splitlines()[1:]:
            _, local, remote, state, *_, user = line.split()[:8]
            if state == ESTABLISHED and _address(local) == peer and _address(remote) == here:
                return int(user)
    return None


def _address(entry: str) -> Address:
    """Read an address of the table: words of the machine's byte order, then the port."""
    host, _, port = entry.partition(":")
    words = [int(host[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(host), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return str(getattr(address, "ipv4_mapped", None) or address), int(port, 16)


def _of_this_user(verify: Callable) -> Callable:
    def verify_request(self: TcpStreamServer, request: Any, client_address: Any) -> bool:
        if self.ssl_context or not ipaddress.ip_address(client_address[0]).is_loopback:
            return verify(self, request, client_address)
        user = owner(client_address[:2], request.getsockname()[:2])
        if user != os.geteuid():
            logger.warning("a connection of user %s of this machine is refused", "unknown" if user is None else user)
            return False
        return verify(self, request, client_address)

    return verify_request

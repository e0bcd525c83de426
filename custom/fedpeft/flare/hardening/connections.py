# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Who connects to a process, how often, and under which name.

FLARE's processes of a site or server connect to their parent over the loopback interface, without TLS and without a
password: whoever connects there may start and abort jobs as the server does. On Linux the kernel's table of connections
says whose the other end is; elsewhere nothing does, and nothing is checked.

Every handshake gives a connection another name, FLARE keeps what it says with it, and forgets no name. Here a
connection has one name, of which nothing else is kept, a certificate has so many connections, and names that have gone
are forgotten. A console's name is random, and FLARE gives it to any certificate; here it is a person's.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer
from nvflare.fuel.f3.endpoint import EndpointState
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name

from fedpeft.flare.hardening import replace_function
from fedpeft.flare.hardening.requests import OF_PEOPLE

logger = logging.getLogger(__name__)
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = "01"  # a connection that its process has closed is listed as root's
Address = tuple[str, int]


def guard_connections() -> None:
    """Refuse other users of this machine in every listener of this process that has no TLS, and too many connections
    or names of one certificate."""
    replace_function(ConnManager, "update_endpoint", _of_one_name)
    replace_function(ConnManager, "handle_new_connection", _one_of_few)
    if sys.platform == "linux":
        replace_function(TcpStreamServer, "verify_request", _of_this_user)


def owner(peer: Address, here: Address) -> int | None:
    """Return the user id of the process at the other end of a connection within this machine; None: there is none."""
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


def _of_this_user(verify: Callable, self: TcpStreamServer, request: Any, client_address: Any) -> bool:
    if self.ssl_context or not ipaddress.ip_address(client_address[0]).is_loopback:
        return verify(self, request, client_address)
    user = owner(client_address[:2], request.getsockname()[:2])
    if user != os.geteuid():
        logger.warning("a connection of user %s of this machine is refused", "unknown" if user is None else user)
        return False
    return verify(self, request, client_address)


MAX_CONNECTIONS = 100  # of one certificate with one process
MAX_NAME = 1000  # characters of a connection's name
MAX_KNOWN = 1000  # names of connections, from which on those that have gone are forgotten


def _one_of_few(take: Callable, self: ConnManager, connection: Connection) -> None:
    certificate = _certificate(connection)
    if (
        certificate
        and sum(_certificate(one.conn) == certificate for one in [*self.sfm_conns.values()]) >= MAX_CONNECTIONS
    ):
        logger.warning("a connection of %.80r is closed: it has %d", certificate, MAX_CONNECTIONS)
        connection.close()
        return
    take(self, connection)


def _certificate(connection: Connection) -> str | None:
    """Return the common name of the certificate at the other end of a connection, where there is one."""
    return (connection.get_conn_properties() or {}).get(DriverParams.PEER_CN.value)


def _of_one_name(update: Callable, self: ConnManager, connection: SfmConnection, said: dict) -> None:
    name, certificate = said.get(HandshakeKeys.ENDPOINT_NAME), _certificate(connection.conn)
    before = connection.sfm_endpoint.endpoint.name if connection.sfm_endpoint else name
    reason = ""
    if not isinstance(name, str) or len(name) > MAX_NAME:
        reason = "it gives no name, or too long a one"
    elif FQCN.normalize(name) != FQCN.normalize(before):
        reason = f"its name is {before:.80}"
    elif is_valid_admin_client_name(name) and certificate and OF_PEOPLE not in certificate:
        reason = "that is the name of a console, and its certificate is no person's"
    if reason:
        logger.warning("the handshake of %.80r as %.80r is refused: %s", certificate, name, reason)
        connection.conn.close()
        return
    if len(self.sfm_endpoints) >= MAX_KNOWN:
        _forget(self)
    update(self, connection, {HandshakeKeys.ENDPOINT_NAME: name})


def _forget(manager: ConnManager) -> None:
    for name, one in [*manager.sfm_endpoints.items()]:
        if one.endpoint.state == EndpointState.DISCONNECTED and not one.connections:
            manager.sfm_endpoints.pop(name, None)
            if one.connections:  # it has come back meanwhile
                manager.sfm_endpoints.setdefault(name, one)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Whether the server's port is free on the server and reachable, with the consortium's certificates, from elsewhere."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

from fedpeft.doctor.case import Case
from fedpeft.doctor.finding import Finding, failed, passed, warned
from fedpeft.doctor.kit import SERVER, Kit

SECONDS, LISTENED = 5.0, 2.0


def check(case: Case) -> Iterator[Finding]:
    """Bind on the server, connect from a site or an administrator's desk; nothing without a kit."""
    if case.kit is None:
        return
    yield free(case.kit.port) if case.kit.role == SERVER else reachable(case.kit)


def free(port: int) -> Finding:
    """Whether a server could listen here."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(("", port))
    except OSError as error:
        return failed(
            f"port {port} cannot be listened on ({error.strerror}): end what uses it (this server, if it runs already)."
        )
    return passed(f"port {port} is free.")


def reachable(kit: Kit, *, seconds: float = SECONDS) -> Finding:
    """A connection to the server with the kit's certificate, and a first sign that the server accepts it."""
    place = f"{kit.host}:{kit.port}"
    if not kit.secured:
        return _answers(kit, seconds)
    try:
        context = ssl.create_default_context(cafile=str(kit.root))
        context.load_cert_chain(kit.certificate, kit.key)
    except (OSError, ssl.SSLError) as error:
        return failed(f"certificate and key of the kit do not load ({error}): unpack the kit again.")
    try:
        with (
            socket.create_connection((kit.host, kit.port), timeout=seconds) as plain,
            context.wrap_socket(plain, server_hostname=kit.host) as secured,
        ):
            ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(secured.getpeercert()["notAfter"]), UTC)
            _refused_late(secured)
    except ssl.SSLCertVerificationError as error:
        return failed(
            f"the server at {place} is not trusted ({error.verify_message}): compare kit and clock with the server's."
        )
    except ssl.SSLError as error:
        return failed(f"the server at {place} refused this kit ({error.reason}): ask for a kit of its own consortium.")
    except socket.gaierror as error:
        return failed(f"{kit.host} has no address here ({error.strerror}): mend DNS or /etc/hosts.")
    except OSError as error:
        return failed(f"{place} does not answer ({error}): start the server, or let the port through the firewall.")
    return passed(f"the server answers at {place}; its certificate is valid until {ends:%Y-%m-%d}.")


def _answers(kit: Kit, seconds: float) -> Finding:
    try:
        with socket.create_connection((kit.host, kit.port), timeout=seconds):
            return warned(f"{kit.host}:{kit.port} answers, without encryption: provision the consortium with mTLS.")
    except OSError as error:
        return failed(f"{kit.host}:{kit.port} does not answer ({error}): start the server, or open its port.")


def _refused_late(secured: ssl.SSLSocket) -> None:
    """With TLS 1.3 a server refuses a client's certificate after the handshake, in the first thing that it sends."""
    secured.settimeout(LISTENED)
    try:
        if not secured.recv(1):
            raise ConnectionResetError("it closed the connection")
    except TimeoutError:
        return

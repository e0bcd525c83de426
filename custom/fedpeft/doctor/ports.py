# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check that the server's port is free on the server, and reachable with the kit's certificate from elsewhere.

FLARE has no command for the server's time. With HTTP, its default, every answer has a Date header.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed, passed, warned
from fedpeft.doctor.kit import SERVER, Kit

SECONDS_TO_CONNECT, SECONDS_TO_LISTEN, LARGEST_SKEW = 5.0, 2.0, 60.0
HTTP = ("http", "https")


def check(context: Context) -> Iterator[Finding]:
    """Bind the port on the server, or connect from a site or an administrator's machine; nothing without a kit."""
    if context.kit is None:
        return
    if context.kit.role == SERVER:
        yield free(context.kit.port)
    else:
        yield from reachable(context.kit)


def free(port: int) -> Finding:
    """Check that a server can listen on a port here."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(("", port))
    except OSError as error:
        return failed(
            f"port {port} cannot be listened on ({error.strerror}): end what uses it (this server, if it runs already)."
        )
    return passed(f"port {port} is free.")


def reachable(kit: Kit, *, seconds: float = SECONDS_TO_CONNECT) -> Iterator[Finding]:
    """Connect to the server, check that it accepts the kit's certificate, and compare the clocks."""
    place = f"{kit.host}:{kit.port}"
    server_time: datetime | None = None
    try:
        if kit.secured:
            context = ssl.create_default_context(cafile=str(kit.root))
            context.load_cert_chain(kit.certificate, kit.key)
            context.check_hostname = False  # like FLARE, which identifies its server by the certificate
    except (OSError, ssl.SSLError) as error:
        yield failed(f"certificate and key of the kit do not load ({error}): unpack the kit again.")
        return
    try:
        with socket.create_connection((kit.host, kit.port), timeout=seconds) as plain:
            if not kit.secured:
                yield warned(f"{place} answers, without encryption: provision the consortium with mTLS.")
                return
            with context.wrap_socket(plain, server_hostname=kit.host) as secured:
                ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(secured.getpeercert()["notAfter"])), UTC)
                if kit.scheme in HTTP:
                    server_time = _time(secured, kit)
                else:
                    _listen(secured)
    except ssl.SSLCertVerificationError as error:
        yield failed(
            f"the server at {place} is not trusted ({error.verify_message}): compare kit and clock with the server's."
        )
    except (ssl.SSLError, ConnectionResetError, BrokenPipeError) as error:
        why = getattr(error, "reason", None) or error
        yield failed(f"the server at {place} refused this kit ({why}): request a kit of the server's consortium.")
    except socket.gaierror as error:
        yield failed(f"{kit.host} has no address here ({error.strerror}): correct DNS or /etc/hosts.")
    except OSError as error:
        yield failed(f"{place} does not answer ({error}): start the server, or let the port through the firewall.")
    else:
        yield passed(f"the server answers at {place}; its certificate is valid until {ends:%Y-%m-%d}.")
        if server_time:
            yield skew((datetime.now(UTC) - server_time).total_seconds())


def skew(seconds: float) -> Finding:
    """Check the difference between this clock and the server's, whose answer has whole seconds."""
    if abs(seconds) <= LARGEST_SKEW:
        return passed(f"this clock and the server's agree within {max(1.0, abs(seconds)):.0f} s.")
    late = "ahead of" if seconds > 0 else "behind"
    return warned(f"this clock is {abs(seconds):.0f} s {late} the server's: switch NTP on at both.")


def _time(secured: ssl.SSLSocket, kit: Kit) -> datetime | None:
    secured.sendall(f"HEAD / HTTP/1.1\r\nHost: {kit.host}\r\nConnection: close\r\n\r\n".encode())
    answer = http.client.HTTPResponse(secured, method="HEAD")
    try:
        answer.begin()
        return parsedate_to_datetime(answer.getheader("Date")).astimezone(UTC)
    except http.client.RemoteDisconnected:  # the certificate was not accepted
        raise
    except (http.client.HTTPException, TypeError, ValueError):  # the server does not use HTTP
        return None


def _listen(secured: ssl.SSLSocket) -> None:
    """Wait for a refusal: with TLS 1.3 a server refuses a client's certificate only after the handshake."""
    secured.settimeout(SECONDS_TO_LISTEN)
    with contextlib.suppress(TimeoutError):
        if not secured.recv(1):
            raise ConnectionResetError("it closed the connection")

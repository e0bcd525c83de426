# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The HTTP server of `fedpeft serve`: GET of pages that are made in memory, for requests that name this server.

Two kinds of pages need no framework: routes, forms, files and sessions must not be here, and the checks of `Server` and
`Handler` would be needed with any of them.
"""

from __future__ import annotations

import contextlib
import errno
import io
import ipaddress
import logging
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from fedpeft.core.errors import FedpeftError
from fedpeft.serve.pages import WorkspacePages, message

SECONDS = 5  # after which a browser reloads a page that changes
DEADLINE = 10.0  # seconds in which a whole request must arrive, and its answer be taken
CONNECTIONS = 32  # at the same time; a browser opens six
BUSY = b"HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """The server; it listens as soon as it is created."""

    daemon_threads = True

    def __init__(
        self,
        pages: WorkspacePages,
        *,
        host: str,  # name or address of this machine
        port: int,  # 0 for any that is free
        deadline: float = DEADLINE,  # seconds in which a whole request must arrive, and its answer be taken
        connections: int = CONNECTIONS,  # that are served at the same time; others are refused
    ) -> None:
        self.pages, self.host, self.deadline = pages, host, deadline
        self._free = threading.BoundedSemaphore(connections)
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self.address_family = family
            super().__init__((str(address[0]), port), Handler)
        except UnicodeError as error:  # of the host's name
            raise FedpeftError(
                f"--host is {host!r:.80}, which is not a valid host name: give an address of this machine."
            ) from error
        except OSError as error:
            raise FedpeftError(_why(error, host, port)) from error
        listens = ipaddress.ip_address(str(self.server_address[0]))
        self.local, self.everywhere = listens.is_loopback, listens.is_unspecified

    def server_bind(self) -> None:
        """Bind without HTTPServer's look-up of this machine's name, which would go to a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, or refuse it if there are too many."""
        if not self._free.acquire(blocking=False):
            request.setblocking(False)
            with contextlib.suppress(OSError):
                request.send(BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started now: `process_request_thread` will not free the place
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    @property
    def url(self) -> str:
        """The address of the list of runs; on this machine if the server listens at all its addresses."""
        host = "localhost" if self.everywhere else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_port}/"

    @property
    def remedy(self) -> str:
        """What a browser is told that used a name that may be another's."""
        if self.everywhere:
            return f"Use the IP address of this machine, with port {self.server_port}, or start it with --host NAME."
        return f"Open {self.url} instead."

    def is_named(self, host: str) -> bool:
        """Return whether a request's Host header names this server.

        An attacker's name server may lead another name here (DNS rebinding), but not an address.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in ("localhost", self.host.lower()):
            return True
        try:
            return ipaddress.ip_address(name).is_loopback or not self.local
        except ValueError:
            return False

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a connection that the browser has closed."""


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server

    def setup(self) -> None:
        """Read the request against one deadline, however slowly its bytes come."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_UntilDeadline(self.connection, self.server.deadline))

    def do_GET(self) -> None:
        """Send a page."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not self.server.is_named(hosts[0]):
            return self.send_error(HTTPStatus.MISDIRECTED_REQUEST, self.server.remedy)
        try:
            made = self.server.pages.page(self.path)
        except Exception:  # whatever it is, the other pages must stay
            logging.getLogger(__name__).exception("a page cannot be made")
            return self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "This page cannot be made; the terminal says why.")
        if made is None:
            return self.send_error(HTTPStatus.NOT_FOUND, "There is no such page.")
        text, changes = made
        self._send(HTTPStatus.OK, text, {"Refresh": str(SECONDS)} if changes else {})

    def send_error(self, code: int, message_: str | None = None, explain: str | None = None) -> None:
        """Send one sentence; nothing of the request is repeated."""
        known = message_ if code in (421, 404, 500) else HTTPStatus(code).phrase + "."
        self.close_connection = True
        self._send(code, message(known), {})

    def _send(self, code: int, text: str, more: dict[str, str]) -> None:
        body = text.encode(errors="replace")
        self.send_response(code)
        for name, value in {**HEADERS, **more, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.connection.settimeout(self.server.deadline)  # of all that is written, however slowly it is taken
        self.wfile.write(body)

    def version_string(self) -> str:
        """Name no version."""
        return "fedpeft"

    def log_message(self, format: str, *args: object) -> None:
        """Log no request."""


class _UntilDeadline(io.RawIOBase):
    """Reads a socket until a number of seconds has passed since it was made."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._until = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        """Return True: it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has arrived."""
        if (left := self._until - time.monotonic()) <= 0:
            raise TimeoutError("the request did not arrive in time")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


def _why(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: name another with --port, or 0 for any that is free."
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"this user may not listen on port {port}: name one above 1023 with --port."
    return f"this machine cannot listen on {host} ({error.strerror}): name an address of it with --host."

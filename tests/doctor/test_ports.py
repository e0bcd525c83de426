# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's port, with a TLS server of the test's own behind it."""

import contextlib
import http.server
import json
import re
import socket
import ssl
import threading
from dataclasses import replace

import pytest
from kit_samples import Authority, write_kit

from fedpeft.core.errors import FedpeftError
from fedpeft.core.workspace import read_kit
from fedpeft.doctor import machine


@contextlib.contextmanager
def serving(kit, *, close=False):
    """A server on loopback that wants certificates of its own authority, and says nothing; yields its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(kit.root))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as gRPC, which asks for no key identifier
    context.load_cert_chain(kit.certificate, kit.key)
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept = []

        def accept():
            while True:
                try:
                    plain, _ = listening.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError):
                    kept.append(context.wrap_socket(plain, server_side=True))
                    if close:
                        kept.pop().close()

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


class Silent(http.server.BaseHTTPRequestHandler):
    """A web server without pages, as FLARE's is."""

    def do_HEAD(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def speaking_http(kit):
    """The same as a web server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(kit.root))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as gRPC, which asks for no key identifier
    context.load_cert_chain(kit.certificate, kit.key)
    context.verify_mode = ssl.CERT_REQUIRED
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def text(kit):
    return " | ".join(f"{finding.verdict}: {finding.sentence}" for finding in machine.reachable(kit))


@pytest.mark.parametrize(
    ("server", "client", "expected"),
    [
        ({}, {}, "pass: the server answers at localhost"),
        ({}, {"foreign": True}, "is not trusted"),
        ({"ends": -1, "begins": -9}, {}, "is not trusted (certificate has expired)"),
        ({}, {"ends": -1, "begins": -9}, "refused this kit"),
    ],
)
@pytest.mark.parametrize(("serve", "scheme"), [(serving, "grpc"), (speaking_http, "http")])
def test_the_server_answers_where_both_certificates_are_valid(
    serve, scheme, server, client, expected, make_kit, authority, tmp_path, monkeypatch
):
    monkeypatch.setattr(machine, "SECONDS_TO_LISTEN", 0.5)
    client = dict(client)
    with serve(read_kit(make_kit("server", **server))) as port:
        own = Authority() if client.pop("foreign", False) else authority
        folder = write_kit(tmp_path / "kit-site", "site", authority=own, port=port, scheme=scheme, **client)
        found = text(read_kit(folder))
    assert expected in found
    assert ("this clock and the server's agree within 1 s" in found) == (scheme == "http" and "pass" in found)


def test_a_site_behind_a_relay_looks_for_the_relay_alone(make_kit, authority, tmp_path):
    """FLARE writes the server's address into its kit as well, which the hospital's firewall may not let through."""
    with speaking_http(read_kit(make_kit("server"))) as port:
        folder = write_kit(tmp_path / "kit-site", "site", authority=authority, port=1)
        relay = {"fqcn": "relay", "scheme": "http", "address": f"localhost:{port}", "connection_security": "mtls"}
        (folder / "local" / "relay__resources.json").write_text(json.dumps({"relay_config": relay}))
        found = text(read_kit(folder))
    assert f"pass: the relay answers at localhost:{port}" in found
    assert "this clock and the relay's agree" in found
    (folder / "local" / "relay__resources.json").write_text("{}")
    with pytest.raises(FedpeftError, match=r"relay__resources\.json does not name the relay"):
        read_kit(folder)


@pytest.mark.parametrize(("serve", "scheme"), [(serving, "grpc"), (speaking_http, "http")])
def test_a_client_of_another_authority_is_refused(serve, scheme, make_kit, tmp_path):
    with serve(read_kit(make_kit("server"))) as port:
        folder = write_kit(tmp_path / "kit-site", "site", authority=Authority(), port=port, scheme=scheme)
        root = (tmp_path / "kit-server" / "startup" / "rootCA.pem").read_bytes()
        (folder / "startup" / "rootCA.pem").write_bytes(root)
        assert "refused this kit" in text(read_kit(folder))


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_server_that_closes_without_a_word_has_refused(scheme, make_kit, tmp_path, authority):
    with serving(read_kit(make_kit("server")), close=True) as port:
        kit = read_kit(write_kit(tmp_path / "kit-site", "site", authority=authority, port=port, scheme=scheme))
        assert "refused this kit" in text(kit)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.4, "pass: this clock and"), (-59, "pass"), (90, "warn: this clock is 90 s ahead of"), (-90, "warn: .*behind")],
)
def test_a_clock_that_differs_from_the_servers_is_reported_with_the_seconds(seconds, expected):
    finding = machine.skew(seconds)
    assert re.match(expected, f"{finding.verdict}: {finding.sentence}")


def test_a_port_that_nobody_listens_on_and_a_host_without_address(make_kit):
    kit = read_kit(make_kit("admin", port=1))
    assert "localhost:1 does not answer" in text(kit)
    assert "nowhere.invalid has no address here" in text(replace(kit, host="nowhere.invalid"))


def test_a_kit_without_its_key(make_kit):
    kit = read_kit(make_kit("site"))
    kit.key.unlink()
    assert "certificate and key of the kit do not load" in text(kit)


def test_a_server_needs_its_port():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        assert machine.free(port).verdict == "fail"
    assert machine.free(port).verdict == "pass"


def test_a_consortium_without_encryption_is_warned_of(make_kit):
    kit = read_kit(make_kit("site"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        plain = replace(kit, host="127.0.0.1", port=server.getsockname()[1], secured=False)
        assert text(plain).startswith("warn")
    assert text(plain).startswith("fail")

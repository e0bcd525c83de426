# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's port, with a TLS server of the test's own behind it."""

import contextlib
import socket
import ssl
import threading

import pytest
from kits import Authority, write_kit

from fedpeft.doctor import ports
from fedpeft.doctor.kit import Kit, read_kit


@contextlib.contextmanager
def serving(kit):
    """A server on loopback that wants certificates of its own authority, and says nothing; yields its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(kit.root))
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

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("server", "client", "expected"),
    [
        ({}, {}, "pass: the server answers at localhost"),
        ({}, {"foreign": True}, "is not trusted"),
        ({"ends": -1, "begins": -9}, {}, "is not trusted (certificate has expired)"),
        ({}, {"ends": -1, "begins": -9}, "refused this kit"),
    ],
)
def test_reachable(server, client, expected, make_kit, authority, tmp_path, monkeypatch):
    monkeypatch.setattr(ports, "LISTENED", 0.5)
    with serving(read_kit(make_kit("server", **server))) as port:
        own = Authority() if client.pop("foreign", False) else authority
        kit = read_kit(write_kit(tmp_path / "kit-site", "site", authority=own, port=port, **client))
        finding = ports.reachable(kit)
    assert expected in f"{finding.verdict}: {finding.sentence}"


def test_a_client_of_another_authority_is_refused(make_kit, authority, tmp_path):
    with serving(read_kit(make_kit("server"))) as port:
        folder = write_kit(tmp_path / "kit-site", "site", authority=Authority(), port=port)
        (folder / "startup" / "rootCA.pem").write_bytes(
            (tmp_path / "kit-server" / "startup" / "rootCA.pem").read_bytes()
        )
        finding = ports.reachable(read_kit(folder))
    assert finding.verdict == "fail"
    assert "refused this kit" in finding.sentence


def test_a_port_that_nobody_listens_on_and_a_host_without_address(make_kit):
    kit = read_kit(make_kit("admin", port=1))
    assert "localhost:1 does not answer" in ports.reachable(kit).sentence
    stranger = Kit(folder=kit.folder, role=kit.role, name=kit.name, host="nowhere.invalid", port=1)
    assert "nowhere.invalid has no address here" in ports.reachable(stranger).sentence


def test_a_kit_without_its_key(make_kit):
    kit = read_kit(make_kit("site"))
    kit.key.unlink()
    assert "certificate and key of the kit do not load" in ports.reachable(kit).sentence


def test_a_server_needs_its_port():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        assert ports.free(port).verdict == "fail"
    assert ports.free(port).verdict == "pass"


def test_a_consortium_without_encryption_is_warned_of(make_kit):
    kit = read_kit(make_kit("site"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        plain = Kit(
            folder=kit.folder, role="site", name="slake", host="127.0.0.1", port=server.getsockname()[1], secured=False
        )
        assert ports.reachable(plain).verdict == "warn"
    assert ports.reachable(plain).verdict == "fail"

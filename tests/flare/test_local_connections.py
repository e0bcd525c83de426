# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A listener without TLS takes this user's connections alone, and nobody else reads what a kit's processes write."""

import os
import socket
import threading
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer

from fedpeft.flare.admission_components import AdmittedAppDeployer, SubmissionGuard
from fedpeft.flare.hardening.requests import guard_local_connections, owner

NOBODY = 65534


@pytest.fixture
def listener(monkeypatch):
    """FLARE's listener of a parent process, guarded: its address, and what it has made of connections."""
    monkeypatch.setattr(TcpStreamServer, "verify_request", TcpStreamServer.verify_request)
    guard_local_connections()
    taken = []
    driver = SimpleNamespace(add_connection=lambda connection: taken.append(connection) or connection.close())
    driver.close_connection = lambda connection: None
    server = TcpStreamServer(driver, SimpleNamespace(params={"host": "localhost", "port": 0}))
    monkeypatch.setattr(server, "handle_error", lambda *args: None)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield SimpleNamespace(address=server.server_address, taken=taken, server=server)
    server.shutdown()
    thread.join()
    server.server_close()


def is_closed(address):
    """Connect, and wait until the other end closes; whatever it does with the connection, it closes it here."""
    with socket.create_connection(address) as connection:
        return connection.recv(1) == b""


def test_this_users_connection_is_taken(listener):
    assert is_closed(listener.address)
    assert len(listener.taken) == 1


def test_a_connection_of_another_user_is_closed(listener, monkeypatch):
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert is_closed(listener.address)
    assert listener.taken == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(listener):
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os._exit(0 if is_closed(listener.address) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert listener.taken == []


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv4 in IPv6"])
def test_the_kernel_says_whose_the_other_end_is(family):
    with socket.create_server(("127.0.0.1", 0)) as here:
        there = socket.socket(family)
        there.connect(("::ffff:127.0.0.1" if family == socket.AF_INET6 else "127.0.0.1", here.getsockname()[1]))
        accepted, peer = here.accept()
        with accepted:
            assert owner(peer, accepted.getsockname()) == os.getuid()
            there.close()  # what is closed is listed as root's
            assert owner(peer, accepted.getsockname()) is None


@pytest.mark.parametrize("component", [AdmittedAppDeployer, SubmissionGuard])
def test_what_a_kits_processes_write_is_this_users_alone(component):
    before = os.umask(0o022)
    try:
        component()
        assert os.umask(0o022) == 0o077
    finally:
        os.umask(before)

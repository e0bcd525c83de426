# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A listener without TLS takes this user's connections alone, one with TLS not too many, each under one name.

Nobody else reads what a kit's processes write.
"""

import os
import socket
import threading
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.cellnet.identity import CellIdentityResolver
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection

from fedpeft.flare.admission_components import AdmittedAppDeployer, SubmissionGuard
from fedpeft.flare.hardening.connections import MAX_CONNECTIONS, MAX_KNOWN, guard_connections, owner

NOBODY = 65534


@pytest.fixture
def listener(monkeypatch):
    """FLARE's listener of a parent process, guarded: its address, and what it has made of connections."""
    monkeypatch.setattr(TcpStreamServer, "verify_request", TcpStreamServer.verify_request)
    guard_connections()
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


def connection(name, certificate="north"):
    """A connection to a listener, of whoever has this certificate."""
    connector = SimpleNamespace(mode=Mode.PASSIVE, params={})
    closed = []
    made = SimpleNamespace(
        name=name, connector=connector, closed=closed, close=lambda: closed.append(name), register_frame_receiver=print
    )
    made.get_conn_properties = lambda: {DriverParams.PEER_CN.value: certificate} if certificate else {}
    return made


@pytest.fixture
def manager(monkeypatch):
    for name in ("update_endpoint", "handle_new_connection"):
        monkeypatch.setattr(ConnManager, name, getattr(ConnManager, name))
    guard_connections()
    made = ConnManager(Endpoint("server"), CellIdentityResolver("server"))
    yield made
    made.stop()


def greets(manager, connection, name, **more):
    """Whether a handshake is taken."""
    wrapped = manager.sfm_conns.setdefault(connection.name, SfmConnection(connection, manager.local_endpoint))
    manager.update_endpoint(wrapped, {HandshakeKeys.ENDPOINT_NAME: name, **more})
    return not connection.closed


def test_a_connection_has_one_name_of_which_nothing_else_is_kept(manager):
    one = connection("CN1")
    assert greets(manager, one, "north", much="x" * 1000)
    assert greets(manager, connection("CN2"), "north.0c5")
    assert manager.sfm_endpoints["north"].endpoint.properties == {}
    assert not greets(manager, one, "north.other")
    assert manager.sfm_endpoints.keys() == {"north", "north.0c5"}


@pytest.mark.parametrize("name", [None, 5, "n" * 1001, ["north"]], ids=str)
def test_a_name_is_a_short_text(manager, name):
    assert not greets(manager, connection("CN1"), name)
    assert not manager.sfm_endpoints


@pytest.mark.parametrize(
    ("certificate", "taken"),
    [("lead@hospital.org", True), ("north", False), ("relay", False), (None, True), ("N/A", True)],
)
def test_a_consoles_name_is_a_persons(manager, certificate, taken):
    name = "_admin_6a1b3c5d-0000-4000-8000-000000000001"
    assert greets(manager, connection("CN1", certificate), name) is taken


def test_a_certificate_has_so_many_connections(manager):
    made = [connection(f"CN{number}") for number in range(MAX_CONNECTIONS + 5)]
    for one in made:
        manager.handle_new_connection(one)
    other, unnamed = connection("other", "south"), connection("unnamed", None)
    manager.handle_new_connection(other)
    manager.handle_new_connection(unnamed)
    assert len(manager.sfm_conns) == MAX_CONNECTIONS + 2
    strangers = [connection(f"stranger{number}", "N/A") for number in range(MAX_CONNECTIONS + 5)]
    for one in strangers:  # FLARE's word where a peer shows no certificate
        manager.handle_new_connection(one)
    assert not any(one.closed for one in strangers)
    assert sum(len(one.closed) for one in made) == 5
    assert not other.closed
    assert not unnamed.closed


def test_names_that_have_gone_are_forgotten(manager):
    for number in range(MAX_KNOWN + 10):
        one = connection(f"CN{number}")
        assert greets(manager, one, f"north.{number}")
        if number % 100:
            manager.close_connection(one)
    assert len(manager.sfm_endpoints) < 100
    assert manager.sfm_endpoints.keys() >= {f"north.{number}" for number in range(0, MAX_KNOWN, 100)}

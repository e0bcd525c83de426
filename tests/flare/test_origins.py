# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Whoever is connected sends messages of its own name and of what lies below it, and of nobody else."""

import threading
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CertificateExchanger, CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, MessageType, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply, new_cell_message
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.utils.network_utils import get_open_ports

from fedpeft.flare import relay
from fedpeft.flare.hardening import requests
from fedpeft.flare.hardening.requests import STOPS, accepts_origin, guard_origins, guard_relay_requests, may_address

JOB = "0c5"
CASES = [  # where it arrives, who sends it, what it says, whether it is taken
    ("server", "north", "north", True),
    ("server", "north", f"north.{JOB}", True),
    ("server", f"north.{JOB}", f"north.{JOB}", True),
    ("server", "relay", "relay.north", True),
    ("server", "relay", f"relay.north.{JOB}", True),
    ("server", "north", "south", False),
    ("server", "north", "server", False),
    ("server", "north", f"server.{JOB}", False),
    ("server", "north", "northern", False),
    ("server", "north", "relay.south", False),
    ("server", f"north.{JOB}", "north", False),
    ("server", "relay", "south", False),
    ("server", "relay", "relay-2.south", False),
    ("server", f"server.{JOB}", f"server.{JOB}", True),
    ("server", f"server.{JOB}", "north", False),
    ("server", "north", None, False),
    ("server", "north", ["north"], False),
    ("relay", "relay.north", f"relay.north.{JOB}", True),
    ("relay", "relay.north", "relay.south", False),
    ("relay", "relay.north", "relay", False),
    ("relay", "server", "server", True),
    ("relay", "server", "relay-2.south", True),
    ("relay.north", "relay", f"server.{JOB}", True),
    (f"relay.north.{JOB}", "relay.north", "server", True),
    ("relay.north", f"relay.north.{JOB}", "server", False),
    (f"server.{JOB}", "server", "north", True),
]


@pytest.mark.parametrize(("here", "peer", "origin", "taken"), CASES, ids=str)
def test_an_origin_is_taken_of_whom_it_names_and_of_those_above(here, peer, origin, taken):
    assert accepts_origin(origin, peer=peer, here=here) is taken


@pytest.fixture
def guarded(monkeypatch):
    """FLARE with the guards, and as it came after the test."""
    for owner, name in (
        (CoreCell, "_process_received_msg"),
        (CoreCell, "_add_adhoc_connector"),
        (CertificateExchanger, "exchange_certificate"),
        (TxTask, "handle_ack"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    guard_origins()


@pytest.fixture
def cells():
    """Function: started cells of these names around a server, over the loopback without TLS."""
    started = []

    def start(*names):
        url = f"tcp://localhost:{get_open_ports(1)[0]}"
        for name in ("server", *names):
            cell = Cell(fqcn=name, root_url=url, secure=False, credentials={})
            cell.start()
            started.append(cell)
        return started

    yield start
    for cell in reversed(started):
        cell.stop()


def forging(cell, origin):
    """Let a cell send every message under another name."""
    send = cell.core_cell._send_to_endpoint

    def forged(to_endpoint, message):
        message.set_header(MessageHeaderKey.ORIGIN, origin)
        return send(to_endpoint, message)

    cell.core_cell._send_to_endpoint = forged


@pytest.mark.slow
def test_what_a_cell_sends_under_anothers_name_or_to_another_site_reaches_nobody(guarded, cells, monkeypatch):
    server, north, south = cells("north", "south")
    seen, said, dropped = [], [], threading.Event()

    def note(request: Message) -> Message:
        seen.append(request.get_header(MessageHeaderKey.ORIGIN))
        return make_reply(ReturnCode.OK)

    def warned(*sentence) -> None:
        said.append(sentence[1:])
        dropped.set()

    for cell in (server, south):
        cell.register_request_cb(channel="some", topic="thing", cb=note)
    monkeypatch.setattr(requests.logger, "warning", warned)

    def ask(cell):
        sent = {"channel": "some", "topic": "thing", "target": "server", "request": new_cell_message({}, None)}
        return cell.send_request(**sent, timeout=60).get_header(MessageHeaderKey.RETURN_CODE)

    def tell(target):
        north.fire_and_forget(channel="some", topic="thing", targets=target, message=new_cell_message({}, None))
        assert dropped.wait(60)
        dropped.clear()

    assert ask(north) == ReturnCode.OK
    tell("south")
    forging(north, "south")
    tell("server")
    assert ask(south) == ReturnCode.OK
    assert seen == ["north", "south"]
    assert said == [("north", "south"), ("north", "south")]


@pytest.mark.parametrize("kind", [MessageType.REQ, MessageType.REPLY, MessageType.RETURN])
def test_no_kind_of_message_is_taken_under_anothers_name(monkeypatch, kind):
    taken = []
    monkeypatch.setattr(
        CoreCell, "_process_received_msg", lambda cell, peer, connection, message: taken.append(message)
    )
    guard_origins()
    server = SimpleNamespace(my_info=SimpleNamespace(fqcn="server"))
    for origin in ("relay.north", "south"):
        headers = {MessageHeaderKey.ORIGIN: origin, MessageHeaderKey.MSG_TYPE: kind}
        message = Message({**headers, MessageHeaderKey.DESTINATION: "server"}, None)
        CoreCell._process_received_msg(server, SimpleNamespace(name="relay"), None, message)
    assert [message.get_header(MessageHeaderKey.ORIGIN) for message in taken] == ["relay.north"]


ADDRESSED = [  # who sends, to whom, whether it is passed on and taken
    ("north", "server", True),
    (f"relay.north.{JOB}", f"server.{JOB}", True),
    ("server", f"relay.north.{JOB}", True),
    (f"server.{JOB}", "north", True),
    ("_admin_1", "server", True),
    ("relay.north", "relay", True),
    ("relay", "relay.north", True),
    (f"north.{JOB}", "north", True),
    ("north", f"north.{JOB}", True),
    ("north", "south", False),
    ("north", f"south.{JOB}", False),
    ("north", f"relay.south.{JOB}", False),
    ("relay.north", "relay.south", False),
    ("north", "northern", False),
    ("_admin_1", "north", False),
    ("north", None, False),
    (["north"], "server", False),
]


@pytest.mark.parametrize(("origin", "destination", "taken"), ADDRESSED, ids=str)
def test_sites_have_nothing_to_say_to_each_other(origin, destination, taken):
    assert may_address(origin, destination) is taken


def test_what_is_encrypted_or_in_bulk_is_dropped_and_no_address_is_dialled(guarded, monkeypatch):
    taken, said = [], []
    monkeypatch.setattr(CoreCell, "_add_adhoc_connector", CoreCell._add_adhoc_connector)
    monkeypatch.setattr(CoreCell, "_process_received_msg", lambda *arguments: taken.append(arguments))
    monkeypatch.setattr(requests.logger, "warning", lambda *sentence: said.append(sentence[0]))
    guard_origins()
    cell = SimpleNamespace(my_info=SimpleNamespace(fqcn="server"))
    headers = {MessageHeaderKey.ORIGIN: "north", MessageHeaderKey.DESTINATION: "server"}
    secret = {**headers, MessageHeaderKey.SECURE: True, MessageHeaderKey.ENCRYPTED: True}
    CoreCell._process_received_msg(cell, SimpleNamespace(name="north"), None, Message(secret, b""))
    bulk = {**headers, MessageHeaderKey.CHANNEL: CellChannel.CELLNET, MessageHeaderKey.TOPIC: "bulk"}
    CoreCell._process_received_msg(cell, SimpleNamespace(name="north"), None, Message(bulk, []))
    assert not taken
    assert "an encrypted message" in said[0]
    assert "messages in bulk" in said[1]
    certificate = {**headers, MessageHeaderKey.CHANNEL: "credential_manager", MessageHeaderKey.TOPIC: "key_exchange"}
    CoreCell._process_received_msg(cell, SimpleNamespace(name="north"), None, Message(certificate, {}))
    assert not taken
    assert "a certificate" in said[2]
    assert CoreCell._add_adhoc_connector(cell, "north", "tcp://elsewhere:1") is None
    with pytest.raises(
        RuntimeError, match="no certificate of 'north' is asked for"
    ):  # for an answer, or one of several
        CertificateExchanger.exchange_certificate(cell, "north")


@pytest.mark.parametrize(
    ("here", "peer", "origin", "destination", "taken"),
    [
        ("server", "north", "north", "server", True),
        (f"server.{JOB}", "server", "server", f"server.{JOB}", True),
        ("relay", "relay.north", "relay.north", "relay", True),
        ("server", "north", "north", f"server.{JOB}", False),  # the job's process would forget the server
        (f"server.{JOB}", "server", "north", f"server.{JOB}", False),
        ("server", "relay", "relay.north", "server", False),  # the server would forget the relay
    ],
)
def test_a_farewell_is_taken_from_the_neighbour_that_leaves_alone(monkeypatch, here, peer, origin, destination, taken):
    seen = []
    monkeypatch.setattr(CoreCell, "_process_received_msg", lambda *arguments: seen.append(arguments))
    guard_origins()
    headers = {MessageHeaderKey.ORIGIN: origin, MessageHeaderKey.DESTINATION: destination}
    message = Message({**headers, MessageHeaderKey.CHANNEL: CellChannel.CELLNET, MessageHeaderKey.TOPIC: "bye"}, None)
    cell = SimpleNamespace(my_info=SimpleNamespace(fqcn=here))
    CoreCell._process_received_msg(cell, SimpleNamespace(name=peer), None, message)
    assert bool(seen) is taken


@pytest.mark.parametrize(("origin", "taken"), [("north.0c5", True), ("south", False), ("north", False), (None, False)])
def test_a_streams_receiver_alone_says_what_became_of_it(guarded, monkeypatch, origin, taken):
    handled = []
    monkeypatch.setattr(TxTask, "handle_ack", lambda task, message: handled.append(message))
    guard_origins()
    TxTask.handle_ack(SimpleNamespace(target="north.0c5"), Message({MessageHeaderKey.ORIGIN: origin}, None))
    assert bool(handled) is taken


def test_a_relay_has_its_guards_before_it_starts(monkeypatch):
    called = []
    guards = ["guard_connections", "guard_origins", "guard_relay_requests", "limit_frames"]
    for name in guards:
        monkeypatch.setattr(relay, name, lambda name=name: called.append(name))
    monkeypatch.setattr(relay.os, "umask", lambda mask: called.append(mask))
    monkeypatch.setattr(f"{relay.FLARES}.parse_arguments", lambda: SimpleNamespace(workspace="kit"))
    monkeypatch.setattr(relay.MainProcessMonitor, "run", lambda **_: called.append("started"))
    relay.main()
    assert called == [
        0o077,
        "guard_connections",
        "guard_origins",
        "guard_relay_requests",
        "limit_frames",
        "started",
    ]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(("origin", "stopped"), [("server", True), ("relay.north", False), ("north", False)])
def test_the_server_alone_stops_a_relay(monkeypatch, stop, origin, stopped):
    done = []
    for name in requests.HANDLERS:
        monkeypatch.setattr(requests.NetAgent, name, lambda agent, request: done.append(request))
    guard_relay_requests()
    getattr(requests.NetAgent, stop)(None, Message({MessageHeaderKey.ORIGIN: origin}, None))
    assert bool(done) is stopped

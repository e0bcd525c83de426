# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What only the server's own processes send is refused from a site, whatever origin it names."""

from types import SimpleNamespace

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import AdminCommandNames, FLContextKey, ServerCommandNames
from nvflare.apis.fl_constant import ReturnCode as TaskReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import IdentityChallengeKey, MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert
from nvflare.private.defs import CellMessageHeaderKeys
from nvflare.private.fed.server.client_manager import ClientManager
from nvflare.private.fed.server.fed_server import FederatedServer
from nvflare.private.fed.server.server_command_agent import ServerCommandAgent
from nvflare.private.fed.server.server_commands import ServerCommands
from nvflare.private.fed.server.server_engine import ServerEngine
from nvflare.private.stream_runner import TOPIC_STREAM_ABORT, TOPIC_STREAM_REQUEST
from nvflare.widgets.fed_event import FedEventHeader, ServerFedEventRunner

from fedpeft.flare.hardening.requests import (
    NO_SESSION,
    NO_SITE,
    NO_STREAM,
    NO_TOKEN,
    NOT_FROM_A_SITE,
    guard_job_requests,
)

JOB = "a-job"
SERVER = SimpleNamespace(_get_id_asserter=lambda: SimpleNamespace(cn="fl.example.org"))
ORIGINAL = {
    (FederatedServer, "_validate_auth_headers"): lambda server, message: None,
    (FederatedServer, "_listen_command"): lambda server, message: "done",
    (FederatedServer, "client_challenge"): lambda server, message: "done",
    (ClientManager, "authenticated_client"): lambda manager, message, fl_ctx, kind: "done",
    (ClientManager, "heartbeat"): lambda manager, token, name, *arguments: "done",
    (ServerCommandAgent, "_execute_command"): lambda agent, message: "done",
    (ServerCommandAgent, "_aux_communicate"): lambda agent, message: "done",
    (ServerEngine, "_handle_aux_message"): lambda engine, message: "done",
}


@pytest.fixture(autouse=True)
def guarded(monkeypatch):
    """FLARE with the guards around functions that do what they are asked, and as it came after the test."""
    for (owner, name), function in ORIGINAL.items():
        assert hasattr(owner, name)
        monkeypatch.setattr(owner, name, function)
    monkeypatch.setattr(ServerFedEventRunner, "_receive", ServerFedEventRunner._receive)
    guard_job_requests()


def request(topic, origin, *, through=None):
    """A message that names an origin; `through`: the cell at the other end of its connection."""
    headers = {
        MessageHeaderKey.TOPIC: topic,
        MessageHeaderKey.ORIGIN: origin,
        CellMessageHeaderKeys.JOB_ID: JOB,
    }
    message = Message(headers, {})
    message.set_prop(MessagePropKey.ENDPOINT, through and SimpleNamespace(name=through))
    return message


def is_refused(answer):
    return answer != "done" and answer.get_header(MessageHeaderKey.ERROR) == NOT_FROM_A_SITE


OF_A_SITE = {*ServerCommands.client_request_commands_names}
STEERING = sorted({command.get_command_name() for command in ServerCommands.commands} - OF_A_SITE)


@pytest.mark.parametrize("topic", STEERING)
@pytest.mark.parametrize("origin", ["south", "south.a-job", "server.a-job", "server.another-job"])
def test_no_site_steers_a_jobs_process(topic, origin):
    assert AdminCommandNames.ABORT in STEERING
    assert is_refused(ServerCommandAgent._execute_command(None, request(topic, origin)))
    assert not is_refused(ServerCommandAgent._execute_command(None, request(topic, "server")))


@pytest.mark.parametrize("topic", sorted(OF_A_SITE))
def test_a_site_fetches_and_answers_its_tasks(topic):
    assert not is_refused(ServerCommandAgent._execute_command(None, request(topic, "south.a-job")))


@pytest.mark.parametrize("topic", [ServerCommandNames.UPDATE_RUN_STATUS, ServerCommandNames.GET_CLIENTS])
@pytest.mark.parametrize(
    ("origin", "refused"), [("server.a-job", False), ("server.b", True), ("south", True), ("south.a-job", True)]
)
def test_only_a_jobs_own_process_says_how_it_is(topic, origin, refused):
    assert is_refused(FederatedServer._listen_command(None, request(topic, origin))) == refused


@pytest.mark.parametrize(
    ("origin", "through", "refused"),
    [
        ("server", "south", True),
        ("server.a-job", "south.a-job", True),
        ("server", None, True),
        ("server.a-job", "server.a-job", False),
        ("south", "south", False),
        ("servers", "south", False),
    ],
)
def test_nobody_else_speaks_under_the_servers_name(origin, through, refused):
    answer = FederatedServer._validate_auth_headers(SERVER, request("any", origin, through=through))
    assert (answer is not None) == refused
    assert answer is None or answer.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.UNAUTHENTICATED


def test_no_site_fires_an_event_in_the_servers_process():
    runner = ServerFedEventRunner()
    event = Shareable()
    for key, value in {
        FedEventHeader.EVENT_TYPE: EventType.FATAL_SYSTEM_ERROR,
        FedEventHeader.TIMESTAMP: 1.0,
        FedEventHeader.EVENT_ID: "one",
    }.items():
        event.set_header(key, value)
    assert runner._receive("fed.event", event, FLContext()).get_return_code() == TaskReturnCode.BAD_REQUEST_DATA
    assert runner.poster is None
    assert runner.in_events == []


ADMIN = "_admin_5f6a"
OF_SITES = {"_admin_0": "", "_admin_1": None, "_admin_2": "client"}  # FLARE lets a site's certificate log in


def at_server(*origins):
    """A server's engine with administrators who are logged in from these cells."""
    sessions = [SimpleNamespace(origin_fqcn=origin, user_role="lead") for origin in origins]
    sessions += [SimpleNamespace(origin_fqcn=origin, user_role=role) for origin, role in OF_SITES.items()]
    manager = SimpleNamespace(get_sessions=lambda: sessions)
    return SimpleNamespace(server=SimpleNamespace(admin_server=SimpleNamespace(sess_mgr=manager)))


@pytest.mark.parametrize("topic", [TOPIC_STREAM_REQUEST, TOPIC_STREAM_ABORT])
@pytest.mark.parametrize(
    ("origin", "taken"),
    [("chest", False), (f"chest.{JOB}", False), *((cell, False) for cell in OF_SITES), (ADMIN, True)],
)
def test_a_stream_that_the_server_writes_to_its_disk_is_an_administrators(topic, origin, taken):
    answer = ServerEngine._handle_aux_message(at_server(ADMIN), request(topic, origin))
    assert (answer == "done") == taken
    assert taken or answer.get_header(MessageHeaderKey.ERROR) == NO_SESSION


def test_without_a_session_there_is_no_stream():
    for server in (None, SimpleNamespace(sess_mgr=None)):
        engine = SimpleNamespace(server=SimpleNamespace(admin_server=server))
        answer = ServerEngine._handle_aux_message(engine, request(TOPIC_STREAM_REQUEST, ADMIN))
        assert answer.get_header(MessageHeaderKey.ERROR) == NO_SESSION


def test_other_messages_of_a_site_pass():
    assert ServerEngine._handle_aux_message(at_server(), request("any", "chest")) == "done"
    assert ServerCommandAgent._aux_communicate(SimpleNamespace(), request("any", "chest")) == "done"


@pytest.mark.parametrize("origin", ["chest", ADMIN, "server"])
def test_the_process_of_a_job_takes_no_stream(origin):
    answer = ServerCommandAgent._aux_communicate(SimpleNamespace(), request(TOPIC_STREAM_REQUEST, origin))
    assert answer.get_header(MessageHeaderKey.ERROR) == NO_STREAM


RANDOM = "5f6a1f9e-54a8-4b7e-8d3a-6f0e8a1c2b3d"


@pytest.mark.parametrize(
    ("name", "token", "taken"),
    [
        ("chest", RANDOM, True),
        ("chest", None, True),  # FLARE refuses it, or lets a registration pass
        ("s", f"erver{RANDOM}", False),  # the server signs its own name and what a client chooses
        ("server", RANDOM, False),
        ("server.x", RANDOM, False),
        ("fl.example.org", RANDOM, False),  # the name in the server's certificate
        (None, RANDOM, False),
        ("chest", 7, False),
    ],
)
def test_a_token_has_the_form_of_a_random_id_and_not_the_servers_name(name, token, taken):
    message = request("heartbeat", "chest")
    message.set_header(CellMessageHeaderKeys.CLIENT_NAME, name)
    message.set_header(CellMessageHeaderKeys.TOKEN, token)
    answer = FederatedServer._validate_auth_headers(SERVER, message)
    assert (answer is None) == taken
    assert taken or answer.get_header(MessageHeaderKey.ERROR) == NO_TOKEN


@pytest.mark.parametrize(
    ("nonce", "taken"), [(RANDOM, True), (f"x{RANDOM}", False), ("", False), (None, False), (7, False)]
)
def test_the_server_signs_a_random_id_alone(nonce, taken):
    message = request("challenge", "chest")
    message.set_header(IdentityChallengeKey.NONCE, nonce)
    answer = FederatedServer.client_challenge(SimpleNamespace(), message)
    assert (answer == "done") == taken


@pytest.mark.parametrize(
    ("role", "kind", "taken"),
    [
        (None, "regular", True),
        ("client", "regular", True),  # as `nvflare cert` writes it
        (None, "relay", True),
        ("member", "regular", False),
        ("lead", "relay", False),
        ("member", "admin", True),
    ],
)
def test_who_has_a_role_does_not_register_as_a_site(role, kind, taken):
    pri, pub = generate_keys()
    identity = Identity("someone", "north", role)
    certificate = generate_cert(subject=identity, issuer=identity, signing_pri_key=pri, subject_pub_key=pub)
    payload = Shareable()
    payload[IdentityChallengeKey.CERT] = serialize_cert(certificate)
    message, context = request("register", "someone"), FLContext()
    message.payload = payload
    answer = ClientManager.authenticated_client(SimpleNamespace(), message, context, kind)
    assert (answer == "done") == taken
    assert context.get_prop(FLContextKey.UNAUTHENTICATED) == (None if taken else NO_SITE)


@pytest.mark.parametrize(("name", "taken"), [("chest", True), ("member@hospital.org", False)])
def test_an_administrators_heartbeat_makes_no_site(name, taken):
    answer = ClientManager.heartbeat(SimpleNamespace(), RANDOM, name, "chest", FLContext())
    assert answer == ("done" if taken else False)

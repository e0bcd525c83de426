# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What only the server's own processes send is refused from a site, whatever origin it names."""

from types import SimpleNamespace

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import AdminCommandNames, FLContextKey, ReservedKey, ServerCommandNames
from nvflare.apis.fl_constant import ReturnCode as TaskReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.fuel.f3.cellnet.defs import IdentityChallengeKey, MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.sec.audit import Auditor
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
    NOT_OWN,
    guard_audit,
    guard_job_requests,
)

JOB = "a-job"
RANDOM = "5f6a1f9e-54a8-4b7e-8d3a-6f0e8a1c2b3d"
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


AGENT = SimpleNamespace(_get_client=lambda token: token and SimpleNamespace(name="south"))


def from_south(
    topic,
    *,
    peer="south",
    task="train",
    number=None,
    event=None,
    token="a token",
    code="OK",
    job=JOB,
    workflow="rounds",
):
    """A message of a site about a task, which says whose it is; `event` is of the site's audit trail."""
    message, about, content = request(topic, "south.a-job"), FLContext(), Shareable()
    about.set_prop(ReservedKey.IDENTITY_NAME, peer, private=False)
    content.set_header(FLContextKey.TASK_NAME, task)
    content.add_cookie(FLContextKey.TASK_ID, number or RANDOM)
    content.set_header(ReservedHeaderKey.AUDIT_EVENT_ID, event)
    content.set_return_code(code)
    content.add_cookie(ReservedHeaderKey.WORKFLOW, workflow)
    about.set_prop(ReservedKey.RUN_NUM, job, private=False)
    content.set_peer_context(about)
    message.payload = content
    message.set_header(CellMessageHeaderKeys.TOKEN, token)
    return message


@pytest.mark.parametrize("topic", sorted(OF_A_SITE))
@pytest.mark.parametrize("more", [{}, {"event": RANDOM}, {"task": None}, {"token": None}], ids=str)
def test_a_site_fetches_and_answers_its_tasks(topic, more):
    assert ServerCommandAgent._execute_command(AGENT, from_south(topic, **more)) == "done"


@pytest.mark.parametrize("topic", sorted(OF_A_SITE))
@pytest.mark.parametrize(
    "more",
    [
        {"peer": "north"},
        {"peer": "south\nforged"},
        {"task": "x" * 1000},
        {"task": "train\nforged"},
        {"number": "a\x1b[31m"},
        {"event": "x]\n[U:lead]"},
        {"event": "y" * 100},
        {"task": "train, peer=north]: round 3 done"},
        {"code": "EXECUTION_EXCEPTION\nforged"},
        {"workflow": "rounds\nforged"},
        {"job": "x, peer=north]: round 3 done"},
    ],
    ids=str,
)
def test_a_site_writes_no_lines_of_its_own_into_the_servers_log(topic, more):
    answer = ServerCommandAgent._execute_command(AGENT, from_south(topic, **more))
    assert answer.get_header(MessageHeaderKey.ERROR) == NOT_OWN


def test_what_is_no_message_about_a_task_is_refused():
    broken = Shareable()
    broken["__headers__"] = "text"
    for content in (None, "text", Shareable(), broken):
        message = from_south(ServerCommandNames.SUBMIT_UPDATE)
        message.payload = content
        assert ServerCommandAgent._execute_command(AGENT, message).get_header(MessageHeaderKey.ERROR) == NOT_OWN


def test_a_text_of_a_site_is_one_field_of_a_line_in_the_audit_trail(tmp_path, monkeypatch):
    for name in ("add_event", "add_job_event"):
        monkeypatch.setattr(Auditor, name, getattr(Auditor, name))
    guard_audit()
    auditor = Auditor(str(tmp_path / "audit.txt"))
    forged = "x]\n[E:1][U:lead@coordinator.org][A:abort_job] all"
    auditor.add_job_event(job_id=JOB, task_name=forged, task_id="y" * 10**6, ref=forged, msg="received")
    auditor.add_event("lead", "list_jobs")
    auditor.close()
    first, second = (tmp_path / "audit.txt").read_text().splitlines()
    assert first.count("[U:") == 0
    assert "[J:a-job]" in first
    assert first.endswith("received")
    assert len(first) < 5000
    assert "[U:lead][A:list_jobs]" in second


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


@pytest.mark.parametrize(
    ("origin", "named", "taken"),
    [
        ("south.a-job", "south", True),
        ("relay.south.a-job", "south", True),
        ("south.a-job", None, True),
        ("server", "fl.example.org", True),
        ("south.a-job", "north", False),
        ("relay.south.a-job", "north", False),
        ("relay.south.a-job", "relay", False),
        ("south.a-job", "south\nforged", False),
        ("south.a-job", ["south"], False),
    ],
)
def test_no_site_is_present_by_the_message_of_another(origin, named, taken):
    message = request("any", origin)
    message.payload = Shareable()
    message.payload.set_peer_props({} if named is None else {ReservedKey.IDENTITY_NAME: named})
    answer = ServerCommandAgent._aux_communicate(SimpleNamespace(), message)
    assert answer == "done" if taken else answer.get_header(MessageHeaderKey.ERROR) == NOT_OWN


@pytest.mark.parametrize(("job", "task"), [("x\nforged", RANDOM), (JOB, "x\nforged"), (JOB, "x" * 1000)])
def test_an_auxiliary_message_writes_no_line_of_its_own_into_the_servers_log(job, task):
    message, broken = request("any", "south.a-job"), request("any", "south.a-job")
    message.payload, broken.payload = Shareable(), Shareable()
    message.payload.set_peer_props({ReservedKey.IDENTITY_NAME: "south", ReservedKey.RUN_NUM: job})
    message.payload.set_header(ReservedHeaderKey.TASK_ID, task)
    broken.payload["__headers__"] = "text"
    for one in (message, broken):
        answer = ServerCommandAgent._aux_communicate(SimpleNamespace(), one)
        assert answer.get_header(MessageHeaderKey.ERROR) == NOT_OWN


@pytest.mark.parametrize("origin", ["chest", ADMIN, "server"])
def test_the_process_of_a_job_takes_no_stream(origin):
    answer = ServerCommandAgent._aux_communicate(SimpleNamespace(), request(TOPIC_STREAM_REQUEST, origin))
    assert answer.get_header(MessageHeaderKey.ERROR) == NO_STREAM


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

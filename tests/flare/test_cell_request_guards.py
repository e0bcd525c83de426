# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Another participant can neither measure, load nor steer a process through FLARE's network diagnosis."""

from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.cellnet import net_agent
from nvflare.fuel.f3.cellnet.core_cell import Message
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.net_agent import NetAgent

from fedpeft.flare import admission_components
from fedpeft.flare.admission_components import AdmittedAppDeployer, SubmissionGuard
from fedpeft.flare.hardening import jobs
from fedpeft.flare.hardening.requests import HANDLERS, NO_DIAGNOSIS, guard_cell_requests

TOPICS = sorted(value for name, value in vars(net_agent).items() if name.startswith("_TOPIC_"))


@pytest.fixture
def guarded(monkeypatch):
    """FLARE with the guards, and as it came after the test."""
    for name in HANDLERS:
        monkeypatch.setattr(NetAgent, name, getattr(NetAgent, name))
    guard_cell_requests()


@pytest.fixture
def handlers(guarded):
    """What a process answers, by topic; its cell has nothing that a handler could use."""
    registered = {}
    cell = SimpleNamespace(register_request_cb=lambda channel, topic, cb: registered.update({topic: cb}))
    NetAgent(cell)
    return registered


@pytest.mark.parametrize("topic", TOPICS)
def test_no_request_of_the_network_diagnosis_is_answered(topic, handlers):
    request = Message(payload={"to": "server", "num": 1, "size": 300_000})
    request.set_header(MessageHeaderKey.ORIGIN, "south")
    reply = handlers[topic](request)
    assert reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.INVALID_REQUEST
    assert reply.get_header(MessageHeaderKey.ERROR) == NO_DIAGNOSIS
    assert reply.payload is None


OF_BOTH = {"guard_connections", "guard_audit", "guard_configurations", "guard_cell_requests", "guard_origins"}
OF_BOTH |= {"limit_frames", "limit_messages", "limit_log_records"}
GUARDS = {
    SubmissionGuard: {"guard_submissions", "guard_job_requests", "guard_job_failures"},
    AdmittedAppDeployer: {"guard_deployments", "guard_requests"},
}


@pytest.mark.parametrize("component", GUARDS)
def test_server_and_site_have_the_guards(component, monkeypatch):
    called = []
    monkeypatch.setattr(admission_components, "limit_log_records", lambda: called.append("limit_log_records"))
    for name in {*vars(jobs)} - {"guard_server", "guard_site"}:
        if name.startswith(("guard_", "limit_")):
            monkeypatch.setattr(jobs, name, lambda name=name: called.append(name))
    component()
    assert {*called} == OF_BOTH | GUARDS[component]

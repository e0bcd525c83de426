# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site reports of its own process of a job costs the job that site alone."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.admin_defs import MsgHeader, error_reply
from nvflare.private.defs import ERROR_MSG_PREFIX, CellMessageHeaderKeys, JobFailureMsgKey, TrainingTopic
from nvflare.private.fed.server import admin, job_runner
from nvflare.private.fed.server.admin import FedAdminServer
from nvflare.private.fed.server.fed_server import FederatedServer
from nvflare.private.fed.server.message_send import ClientReply
from nvflare.private.scheduler_constants import ShareableHeader

from fedpeft.flare.hardening.jobs import REASONS, guard_job_failures
from fedpeft.flare.returning_sites import PART_ENDED

JOB, SUCCESS = "a-job", 0
ENOUGH, TOKEN = ShareableHeader.IS_RESOURCE_ENOUGH, ShareableHeader.RESOURCE_RESERVE_TOKEN


@pytest.fixture(autouse=True)
def guarded(monkeypatch):
    """FLARE with the guards, and as it came after the test."""
    for owner, name in (
        (FederatedServer, "process_job_failure"),
        (FederatedServer, "_resolve_missing_client_outcome"),
        (job_runner, "check_client_replies"),
        (job_runner.JobRunner, "_deploy_job"),
        (FedAdminServer, "send_requests"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    guard_job_failures()


class Server:
    """A server with one job at one of its two sites; what happens to the job is kept in `failed` and `events`."""

    def __init__(self):
        self.failed, self.events, self.pending = [], [], {(JOB, "north")}
        self.logger = SimpleNamespace(info=print, warning=print, error=print)
        clients = {f"{name}-token": Client(name, f"{name}-token") for name in ("north", "south")}
        self.client_manager = SimpleNamespace(clients=clients, is_from_authorized_client=clients.__contains__)
        jobs = SimpleNamespace(
            is_client_outcome_pending=lambda job, site: (job, site) in self.pending,
            resolve_client_outcome=lambda job, site: self.pending.discard((job, site)),
            fail_run=lambda job, code, fl_ctx: self.failed.append(job),
            stop_run=lambda job, fl_ctx: self.failed.append(job),
        )
        self.engine = SimpleNamespace(
            job_runner=jobs,
            new_context=lambda: nullcontext(FLContext()),
            fire_event=lambda event, fl_ctx: self.events.append((event, fl_ctx.get_prop(FLContextKey.EVENT_DATA))),
            run_processes={},
            exception_run_processes={},
        )

    def report(self, site="north", *, job=JOB, code=101, reason="?"):
        payload = {JobFailureMsgKey.JOB_ID: job, JobFailureMsgKey.CODE: code, JobFailureMsgKey.REASON: reason}
        headers = {MessageHeaderKey.ORIGIN: site, CellMessageHeaderKeys.TOKEN: f"{site}-token"}
        answer = FederatedServer.process_job_failure(self, Message(headers, payload))
        return answer.get_header(MessageHeaderKey.RETURN_CODE)


@pytest.mark.parametrize("code", REASONS)
def test_a_site_whose_process_ended_is_announced_once_and_fails_no_job(code):
    server = Server()
    for _ in range(100):
        assert server.report(code=code) == ReturnCode.OK
    assert server.failed == []
    assert server.events == [(PART_ENDED, {"job": JOB, "site": "north", "reason": REASONS[code]})]
    assert not server.pending


@pytest.mark.parametrize(
    "said",
    [
        {"site": "south"},
        {"site": "stranger"},
        {"job": "another-job"},
        {"job": ["a-job"]},
        {"code": "101"},
        {"code": 103.0},
        {"code": np.int64(103)},
        {"code": [103]},
        {"code": 5},
        {"code": SUCCESS},
    ],
)
def test_any_other_report_fails_and_announces_nothing(said):
    server = Server()
    assert server.report(**said) in (ReturnCode.OK, ReturnCode.UNAUTHENTICATED)
    assert server.failed == server.events == []
    assert server.pending == (set() if "code" in said else {(JOB, "north")})


def test_no_text_of_a_site_is_logged(caplog, capsys):
    server = Server()
    server.report(reason="\x1b[2Jdone")
    assert "\x1b" not in caplog.text + capsys.readouterr().out


def test_a_site_that_is_lost_after_the_last_round_does_not_spoil_the_job():
    server = Server()
    client = server.client_manager.clients["north-token"]
    FederatedServer._resolve_missing_client_outcome(server, client, JOB, "client dead")
    assert server.failed == []
    assert not server.pending


STARTED = AdminMessage("reply", "Start the client app...")


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("reply", "starts"),
    [
        (AdminMessage("reply", f"{ERROR_MSG_PREFIX}: no such app"), False),
        (error_reply("not allowed"), False),
        (STARTED, True),
    ],
)
def test_a_job_starts_though_one_site_cannot_start_its_part(reply, starts, strict):
    replies = [
        ClientReply("", name, AdminMessage("start", ""), said) for name, said in (("north", reply), ("south", STARTED))
    ]
    away = job_runner.check_client_replies(replies, ["north", "south"], "start job (a-job)", strict)
    assert away == (["north"] if strict and not starts else [])
    assert [one.client_name for one in replies if one.reply] == ["north", "south"][not starts :]


@pytest.mark.parametrize("strict", [False, True])
def test_a_job_starts_though_one_site_has_left(strict):
    replies = [ClientReply("", "south", AdminMessage("start", ""), STARTED)]
    away = job_runner.check_client_replies(replies, ["north", "south"], "start job (a-job)", strict)
    assert away == (["north"] if strict else [])
    with pytest.raises(RuntimeError, match="no replies"):
        job_runner.check_client_replies([], ["north", "south"], "start job (a-job)", strict)


@pytest.mark.parametrize(
    ("there", "min_sites", "required", "deployed"),
    [
        (("north", "south"), 1, None, ["server", "north", "south"]),
        (("south",), 1, None, ["server", "south"]),
        (("south",), 2, None, ["server", "north", "south"]),  # FLARE then says who is missing
        (("south",), 1, ["north"], ["server", "north", "south"]),
    ],
)
def test_a_job_is_deployed_though_one_site_has_left(monkeypatch, there, min_sites, required, deployed):
    given = []
    monkeypatch.setattr(
        job_runner.JobRunner, "_deploy_job", lambda self, job, sites, context: given.extend(sites) or (JOB, [])
    )
    guard_job_failures()
    engine = SimpleNamespace(get_client_from_name=lambda name: name if name in there else None)
    job = SimpleNamespace(job_id=JOB, min_sites=min_sites, required_sites=required)
    sites = dict.fromkeys(["server", "north", "south"])
    found = job_runner.JobRunner._deploy_job(None, job, sites, SimpleNamespace(get_engine=lambda: engine))
    assert given == deployed
    assert found == (JOB, ["north"] if "north" not in deployed else [])


def resources(**said):
    """A reply to the question whether a site has what a job needs."""
    body = Shareable()
    for name, value in {ENOUGH: True, TOKEN: "a-token", **said}.items():
        body.set_header(name, value)
    return AdminMessage("reply", body)


def headed(reply, headers):
    reply.headers = headers
    return reply


@pytest.mark.parametrize(
    ("topic", "reply", "readable"),
    [
        (TrainingTopic.DEPLOY, AdminMessage("reply", "ok"), True),
        (TrainingTopic.DEPLOY, error_reply("not allowed"), True),
        (TrainingTopic.DEPLOY, {"body": "no message"}, False),
        (TrainingTopic.DEPLOY, "ok", False),
        (TrainingTopic.DEPLOY, headed(AdminMessage("reply", "ok"), None), False),
        (TrainingTopic.DEPLOY, headed(AdminMessage("reply", "ok"), {MsgHeader.RETURN_CODE: np.ones(2)}), False),
        (TrainingTopic.CHECK_RESOURCE, resources(), True),
        (TrainingTopic.CHECK_RESOURCE, error_reply("not allowed"), True),
        (TrainingTopic.CHECK_RESOURCE, resources(**{ENOUGH: np.ones(2)}), False),
        (TrainingTopic.CHECK_RESOURCE, resources(**{TOKEN: ["a-token"]}), False),
        (TrainingTopic.CHECK_RESOURCE, AdminMessage("reply", "yes"), False),
    ],
)
def test_a_reply_that_flare_could_not_read_counts_as_none(monkeypatch, topic, reply, readable):
    """It would end the job in its deployment, and let no job of any site be scheduled any more."""
    request = AdminMessage(topic, "")
    sent = [ClientReply("", "north", request, reply), ClientReply("", "south", request, None)]
    monkeypatch.setattr(admin, "send_requests", lambda **options: sent)
    server = SimpleNamespace(sai=None, cell=None, clients={})
    north, south = FedAdminServer.send_requests(server, {}, FLContext())
    assert north.reply is (reply if readable else None)
    assert south.reply is None

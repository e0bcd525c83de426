# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a server asks of a site's own process, past every authorization, reads nothing and removes nothing."""

import logging
import uuid
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.fuel.sec.audit import AuditService
from nvflare.private.admin_defs import Message
from nvflare.private.defs import InfoCollectorTopic, SysCommandTopic, new_cell_message
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.info_coll_cmd import ClientInfoProcessor
from nvflare.private.fed.client.shell_cmd import ShellCommandProcessor
from nvflare.private.fed.client.sys_cmd import ReportEnvProcessor, SysInfoProcessor

from fedpeft.flare.hardening.requests import DELETED, KEPT, NOT_AT_A_SITE, check_job_id, guard_requests
from fedpeft.flare.provisioning import PERMISSIONS
from fedpeft.job.strict_files import AdmissionError

SECRET = "hospital-database-password"


@pytest.fixture
def guarded(monkeypatch):
    """FLARE with the guards, and as it came after the test."""
    for owner, name in (
        (ShellCommandProcessor, "process"),
        (ReportEnvProcessor, "process"),
        (SysInfoProcessor, "process"),
        (ClientInfoProcessor, "process"),
        (ClientEngine, "delete_run"),
        (ClientEngine, "start_app"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    guard_requests()


@pytest.fixture
def kit(tmp_path):
    """A site's workspace with what it must not lose."""
    for file in ("startup/client.key", "local/fedpeft.json", "fedpeft/book.jsonl"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(SECRET)
    return tmp_path


@pytest.fixture
def ask(tmp_path):
    """Send one request of the server, without the header that asks for an authorization."""

    @contextmanager
    def context():
        yield FLContext()

    AuditService.initialize(str(tmp_path / "audit.txt"))
    agent = FedAdminAgent(
        "hospital", SimpleNamespace(register_request_cb=lambda **_: None), SimpleNamespace(new_context=context)
    )
    for processor in ClientRequestProcessors.request_processors:
        agent.register_processor(processor)

    def send(topic: str, body: str = "") -> str:
        return str(agent._dispatch_request(new_cell_message({}, Message(topic=topic, body=body))).payload.body)

    return send


@pytest.mark.parametrize("command", ["cat {}/startup/client.key", "ls {}/local", "grep -r hospital {}", "pwd"])
def test_no_command_runs_at_a_site(command, guarded, ask, kit):
    answer = ask(SysCommandTopic.SHELL, command.format(kit))
    assert NOT_AT_A_SITE in answer
    assert SECRET not in answer
    assert "fedpeft.json" not in answer


@pytest.mark.parametrize(
    "topic", [SysCommandTopic.REPORT_ENV, SysCommandTopic.SYS_INFO, InfoCollectorTopic.SHOW_ERRORS]
)
def test_no_path_no_error_text_and_no_fact_of_the_machine_leaves(topic, guarded, ask):
    assert NOT_AT_A_SITE in ask(topic)


@pytest.mark.parametrize("job_id", ["local", "startup", "fedpeft", "../local", "", ".", None])
def test_a_job_cannot_take_a_folder_of_the_site(job_id, guarded, kit):
    with pytest.raises(AdmissionError, match="is not a UUID"):
        check_job_id(job_id, Workspace(str(kit), site_name="hospital"))
    engine = SimpleNamespace(
        args=SimpleNamespace(workspace=str(kit)), client_executor=SimpleNamespace(run_processes={})
    )
    assert ClientEngine.delete_run(engine, job_id) == KEPT
    assert sorted(path.name for path in kit.rglob("*") if path.is_file()) == [
        "book.jsonl",
        "client.key",
        "fedpeft.json",
    ]


def test_the_folder_of_a_job_goes_once_it_has_ended(guarded, kit):
    job_id = str(uuid.uuid4())
    (kit / job_id / "fedpeft").mkdir(parents=True)
    processes = {job_id: {}}
    engine = SimpleNamespace(
        args=SimpleNamespace(workspace=str(kit)), client_executor=SimpleNamespace(run_processes=processes)
    )
    assert ClientEngine.delete_run(engine, job_id) == KEPT
    with pytest.raises(AdmissionError, match="has run here"):
        check_job_id(job_id, Workspace(str(kit), site_name="hospital"))
    processes.clear()
    assert ClientEngine.delete_run(engine, job_id) == DELETED
    assert not (kit / job_id).exists()
    check_job_id(job_id, Workspace(str(kit), site_name="hospital"))


def test_an_app_that_does_not_start_is_an_error_so_that_flare_frees_its_gpus(guarded, tmp_path):
    job_id, started = str(uuid.uuid4()), []
    executor = SimpleNamespace(get_status=lambda _: None, start_app=lambda *_, **__: started.append(job_id))
    engine = SimpleNamespace(
        args=SimpleNamespace(workspace=str(tmp_path)),
        client=SimpleNamespace(client_name="hospital"),
        client_executor=executor,
        logger=logging.getLogger(),
        rank=0,
        new_context=FLContext,
    )
    for folder in ("startup", "local"):
        (tmp_path / folder).mkdir()
    with pytest.raises(RuntimeError, match="Client app does not exist"):
        ClientEngine.start_app(engine, job_id, {})
    (tmp_path / job_id / "app_hospital").mkdir(parents=True)
    assert ClientEngine.start_app(engine, job_id, {}) == "Start the client app..."
    assert started == [job_id]


def test_no_role_may_run_commands():
    rights = [role.get("shell_commands", "none") for role in PERMISSIONS.values()]
    assert set(rights) == {"none"}

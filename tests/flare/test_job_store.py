# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the server keeps of a finished job, and of one that its own death cut off, in FLARE's real store."""

import json
import os
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey, RunStatus
from nvflare.apis.server_engine_spec import ServerEngineSpec
from nvflare.apis.utils.event import fire_event_to_components
from nvflare.app_common.storages.filesystem_storage import FilesystemStorage
from nvflare.private.fed.app.utils import component_security_check

from fedpeft.flare.controller import REPLIES
from fedpeft.flare.job_store import JobStore
from fedpeft.flare.stale_jobs import StaleJobs
from fedpeft.report.status import Progress

HISTORY = {"job": "small", "settings": {"training": {"rounds": 3}}, "rounds": [{"round": 1, "sites": {}}]}


@pytest.fixture
def server(tmp_path):
    """A server with FLARE's storage: `store`, `context`, and `runs`, the folder of the run directories."""
    store, storage = JobStore(uri_root=str(tmp_path / "jobs")), FilesystemStorage(root_dir=str(tmp_path))
    parts = {"job_manager": store, "job_store": storage}
    workspace = SimpleNamespace(
        get_run_dir=lambda job: str(tmp_path / "runs" / job), get_root_dir=lambda: str(tmp_path)
    )
    engine = Mock(spec=ServerEngineSpec, get_component=parts.get, get_workspace=lambda: workspace)
    context = FLContext()
    context.get_engine = lambda: engine
    return SimpleNamespace(store=store, context=context, runs=tmp_path / "runs")


def submitted(server, **meta):
    return server.store.create({"name": "small", **meta}, b"", server.context)[JobMetaKey.JOB_ID.value]


def run(server, job, *, manifest=None, history=HISTORY):
    folder = server.runs / job / "fedpeft"
    folder.mkdir(parents=True)
    for name, content in (("manifest", manifest), ("history", history)):
        if content:
            (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder.parent


def kept(server, job):
    meta = server.store.get_job(job, server.context).meta
    return Progress.from_json(meta["fedpeft"]) if "fedpeft" in meta else None


@pytest.mark.parametrize(
    ("manifest", "state", "reason"),
    [
        ({"status": "completed"}, "completed", ""),
        ({"status": "failed", "reason": "no site answered."}, "failed", "no site answered."),
        ({"status": "failed", "reason": "x" * 5000}, "failed", "x" * 2000),
        (None, "failed", "the job ended before it wrote its manifest."),
        ("{", "failed", "its manifest or history is damaged."),
    ],
)
def test_the_manifests_word_is_kept_with_the_job(server, manifest, state, reason):
    job = submitted(server)
    server.store.save_workspace(job, [str(run(server, job, manifest=manifest))], server.context)
    found = kept(server, job)
    assert (found.state, found.reason) == (state, reason)
    assert found.rounds == (None if "damaged" in reason else 3)


def test_a_job_does_not_bring_its_own_outcome(server):
    assert kept(server, submitted(server, fedpeft={"state": "completed"})) is None
    copy = server.store.clone(submitted(server), {"name": "copy", "fedpeft": {"state": "completed"}}, server.context)
    assert kept(server, copy[JobMetaKey.JOB_ID.value]) is None


@pytest.mark.parametrize("status", list(RunStatus))
def test_what_a_dead_server_left_running_is_finished(server, status):
    job = submitted(server)
    server.store.set_status(job, status, server.context)
    folder = run(server, job)
    StaleJobs().handle_event(EventType.SYSTEM_START, server.context)
    assert server.store.get_job(job, server.context).meta[JobMetaKey.STATUS.value] == status.value
    StaleJobs().handle_event(EventType.SYSTEM_BOOTSTRAP, server.context)
    stale = status in (RunStatus.RUNNING, RunStatus.DISPATCHED)
    now = RunStatus.FINISHED_ABNORMAL if stale else status
    assert server.store.get_job(job, server.context).meta[JobMetaKey.STATUS.value] == now.value
    assert ("workspace" in server.store.list_components(job, server.context)) == stale
    assert (kept(server, job) is not None) == stale
    assert folder.exists() != stale, "it is in the store"


def test_what_a_dead_server_was_writing_is_removed(server, tmp_path):
    """As a killed job leaves the replies that were on its disk (above the largest process id)."""
    submitted(server)
    for name in (f".{REPLIES}.4194305.draft", f".{REPLIES}.{os.getpid()}.draft", "small-1"):
        (tmp_path / "fedpeft" / name).mkdir(parents=True)
    StaleJobs().handle_event(EventType.SYSTEM_BOOTSTRAP, server.context)
    left = {path.name for path in (tmp_path / "fedpeft").iterdir()}
    assert left == {f".{REPLIES}.{os.getpid()}.draft", "small-1"}


def test_what_is_left_of_a_stored_run_does_not_replace_it(server):
    """The server was killed while FLARE removed the folder of a job that had ended."""
    job = submitted(server)
    server.store.set_status(job, RunStatus.RUNNING, server.context)
    folder = run(server, job)
    server.store.save_workspace(job, [str(folder)], server.context)
    stored = server.store.get_storage_component(job, "workspace", server.context)
    (folder / "fedpeft" / "history.json").unlink()
    StaleJobs().handle_event(EventType.SYSTEM_BOOTSTRAP, server.context)
    assert server.store.get_storage_component(job, "workspace", server.context) == stored
    assert not folder.exists()


def test_with_a_folder_for_state_what_a_dead_server_was_writing_is_removed_there(server, tmp_path, monkeypatch):
    submitted(server)
    monkeypatch.setenv("FEDPEFT_STATE", str(tmp_path / "state"))
    left = tmp_path / "state" / "hospitals" / f".{REPLIES}.4194305.draft"
    left.mkdir(parents=True)
    server.context.set_prop(
        FLContextKey.SITE_OBJ, SimpleNamespace(project_name="hospitals"), private=True, sticky=False
    )
    StaleJobs().handle_event(EventType.SYSTEM_BOOTSTRAP, server.context)
    assert not left.exists()


def test_a_run_that_cannot_be_stored_is_finished_all_the_same(server, monkeypatch):
    job = submitted(server)
    server.store.set_status(job, RunStatus.RUNNING, server.context)
    folder = run(server, job)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(server.store, "save_workspace", full)
    StaleJobs().handle_event(EventType.SYSTEM_BOOTSTRAP, server.context)
    status = server.store.get_job(job, server.context).meta[JobMetaKey.STATUS.value]
    assert status == RunStatus.FINISHED_ABNORMAL.value
    assert (folder / "fedpeft" / "history.json").is_file(), "what is stored nowhere else stays"


@pytest.mark.parametrize("store", [None, SimpleNamespace(get_jobs_by_status=list)])
def test_a_server_whose_folder_of_jobs_is_unknown_does_not_start(server, store):
    server.context.get_engine().get_component = {"job_manager": store}.get
    fire_event_to_components(EventType.SYSTEM_BOOTSTRAP, [StaleJobs()], server.context)
    with pytest.raises(RuntimeError, match="which names no folder of jobs to lock: use"):
        component_security_check(server.context)


def test_a_second_server_with_the_same_jobs_finishes_none_and_does_not_start(server):
    job = submitted(server)
    first, second = StaleJobs(), StaleJobs(patience=0)
    first.handle_event(EventType.SYSTEM_BOOTSTRAP, server.context)
    server.store.set_status(job, RunStatus.RUNNING, server.context)
    fire_event_to_components(EventType.SYSTEM_BOOTSTRAP, [second], server.context)
    with pytest.raises(RuntimeError, match="another server works with the jobs"):
        component_security_check(server.context)
    assert server.store.get_job(job, server.context).meta[JobMetaKey.STATUS.value] == RunStatus.RUNNING.value
    assert len(server.store.get_all_jobs(server.context)) == 1

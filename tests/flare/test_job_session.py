# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A job in a consortium: what the server tells an administrator, with FLARE's session replaced."""

import json
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.flare_api.api_spec import AuthenticationError, InternalError, JobNotFound, JobNotRunning, NoConnection
from nvflare.widgets.info_collector import GroupInfoCollector, InfoCollector

from fedpeft.core.errors import FedpeftError
from fedpeft.flare import job_session, job_store
from fedpeft.flare.controller import FederationController
from fedpeft.flare.job_session import JobSession

STATS = {"server": {"fedpeft": {"round": 2, "rounds": 4, "rejected": ["head, round 1: late"]}, "ServerRunner": {}}}


class Server:
    """FLARE's session: each answer is a value, or an error to raise."""

    def __init__(self, *states, stats=STATS, kept=None):
        self.states, self.stats, self.closed = list(states), stats, False
        self.kept = {"fedpeft": kept} if kept else {}

    def get_job_meta(self, job):
        return self._answer({"name": "small", "status": self.states.pop(0), **self.kept})

    def show_stats(self, job, target):
        return self._answer(self.stats)

    def close(self):
        self.closed = True

    def _answer(self, value):
        error = value.get("status", value) if isinstance(value, dict) else value
        if isinstance(error, Exception):
            raise error
        return value


@pytest.fixture
def kit(tmp_path):
    (tmp_path / "startup").mkdir()
    admin = {"username": "lead@lab.org", "host": "localhost", "port": 8002}
    (tmp_path / "startup" / "fed_admin.json").write_text(json.dumps({"admin": admin}))
    return tmp_path


@pytest.fixture
def connect(kit, monkeypatch):
    """Function from a server to a session with it."""

    def start(server):
        monkeypatch.setattr(job_session, "new_secure_session", lambda *_, **__: server)
        return JobSession(kit, "an-id")

    return start


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (Server("SUBMITTED"), {"state": "submitted", "job": "small", "ended": False}),
        (Server("RUNNING"), {"state": "running", "round": 2, "rounds": 4, "rejected": ("head, round 1: late",)}),
        (Server("RUNNING", stats={"server": "x"}), {"state": "running", "round": 0}),
        (Server("RUNNING", stats={}), {"state": "running", "round": 0}),
        (Server("RUNNING", stats=JobNotRunning()), {"state": "starting or ending", "round": 0}),
        (Server("RUNNING", stats=JobNotFound()), {"state": "starting or ending", "round": 0}),
        (Server("RUNNING", stats=InternalError()), {"state": "starting or ending", "round": 0}),
        (Server("FINISHED:COMPLETED"), {"state": "completed", "ended": True}),
        (Server("FINISHED:ABORTED"), {"state": "failed", "ended": True}),
    ],
)
def test_the_progress_of_a_job_is_read_from_the_servers_answers(server, expected, connect):
    with connect(server) as session:
        found = session.progress()
    assert {name: getattr(found, name) for name in expected} == expected
    assert server.closed


def test_what_was_known_stays_when_the_job_ends(connect):
    stats = {"server": {"fedpeft": {"round": 4, "rounds": 4, "mean": 0.5}}}
    with connect(Server("RUNNING", "FINISHED:COMPLETED", stats=stats)) as session:
        session.progress()
        found = session.progress()
    assert (found.state, found.round, found.mean, found.reason) == ("completed", 4, 0.5, "")


def test_a_completed_job_has_done_the_rounds_that_nobody_saw(connect):
    with connect(Server("RUNNING", "FINISHED:COMPLETED")) as session:
        session.progress()
        found = session.progress()
    assert (found.state, found.round, found.rounds, found.mean) == ("completed", 4, 4, None)
    assert "nvflare job download an-id" in found.reason


DONE = {"job": "small", "state": "completed", "round": 4, "rounds": 4, "mean": 0.5}
CUT = {"job": "small", "state": "failed", "round": 2, "rounds": 4, "reason": "no site answered."}


@pytest.mark.parametrize(
    ("kept", "flare", "state", "reason"),
    [
        (DONE, "FINISHED:COMPLETED", "completed", ""),
        (DONE, "FINISHED:ABNORMAL", "completed", "the manifest says completed, FLARE says FINISHED:ABNORMAL; `nvflare"),
        (CUT, "FINISHED:ABNORMAL", "failed", "no site answered. FLARE says FINISHED:ABNORMAL; `nvflare job download"),
        (CUT, "FINISHED:COMPLETED", "failed", "no site answered. FLARE says FINISHED:COMPLETED; `nvflare job download"),
        ({}, "FINISHED:ABNORMAL", "failed", "FLARE says FINISHED:ABNORMAL; `nvflare job download"),
        ({"round": 2}, "FINISHED:ABNORMAL", "failed", "its manifest gives no reason. FLARE says FINISHED:ABNORMAL"),
    ],
)
def test_the_manifest_decides_and_flares_word_stands_beside_it(kept, flare, state, reason, connect):
    with connect(Server(flare, kept=kept)) as session:
        found = session.progress()
    assert (found.state, found.round, found.job) == (state, kept.get("round", 0), "small")
    assert found.reason.startswith(reason)
    assert bool(found.reason) == bool(reason)


@pytest.mark.parametrize("state", ["FINISHED:COMPLETED", "FINISHED:EXECUTION_EXCEPTION"])
def test_an_ended_job_says_where_the_rest_is(state, connect):
    with connect(Server(state)) as session:
        assert "nvflare job download an-id" in session.progress().reason


@pytest.fixture
def waited(monkeypatch):
    """Seconds that were waited, which no test has to wait."""
    seconds = []
    monkeypatch.setattr(job_session.time, "sleep", seconds.append)
    return seconds


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (JobNotFound(), "has no job an-id"),
        (AuthenticationError("no"), "refuses this kit"),
        (NoConnection("gone"), "does not answer"),
        (InternalError("odd"), "could not answer \\(odd\\): look at its log"),
        (RuntimeError("odd"), "could not answer"),
    ],
)
def test_errors_of_the_server_are_refused_with_the_remedy(error, reported, connect, waited):
    with (
        connect(Server(*[error] * (len(job_session.PAUSES) + 1))) as session,
        pytest.raises(FedpeftError, match=reported),
    ):
        session.progress()


@pytest.mark.parametrize("times", [1, len(job_session.PAUSES)])
def test_a_request_is_repeated_later_and_later_where_the_server_is_busy(connect, waited, times):
    with connect(Server(*[NoConnection("busy")] * times, "RUNNING")) as session:
        assert session.progress().round == 2
    assert tuple(waited) == job_session.PAUSES[:times]


def test_a_server_that_does_not_answer_is_reported(kit, monkeypatch):
    def refuse(*_, **__):
        raise NoConnection("cannot connect")

    monkeypatch.setattr(job_session, "new_secure_session", refuse)
    with pytest.raises(FedpeftError, match="the server at localhost:8002 does not answer"):
        JobSession(kit, "an-id")


def test_only_an_administrator_can_ask(tmp_path):
    (tmp_path / "startup").mkdir()
    site = {"servers": [{"service": {"target": "localhost:8002"}}], "client": {"fqsn": "slake"}}
    (tmp_path / "startup" / "fed_client.json").write_text(json.dumps(site))
    with pytest.raises(FedpeftError, match="is the kit of a site"):
        JobSession(tmp_path, "an-id")


def test_the_server_tells_its_progress_to_flares_collector(tmp_path, monkeypatch):
    monkeypatch.setattr(job_store, "run_folder", lambda fl_ctx: tmp_path)
    made = {
        "job": "small",
        "settings": {"training": {"rounds": 4}},
        "rounds": [{"round": 1, "sites": {}, "seconds": 2}],
    }
    (tmp_path / "history.json").write_text(json.dumps(made))
    context, collector = FLContext(), GroupInfoCollector()
    context.set_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR, collector, sticky=False, private=True)
    server = FederationController()
    server.handle_event("another event", context)
    assert not collector.info
    server.handle_event(InfoCollector.EVENT_TYPE_GET_STATS, context)
    reported = SimpleNamespace(**json.loads(json.dumps(collector.info))["fedpeft"])
    assert (reported.job, reported.round, reported.rounds, reported.state) == ("small", 1, 4, "running")


def test_a_job_whose_server_part_is_over_is_not_called_running(connect):
    server = Server("RUNNING", "RUNNING")
    with connect(server) as session:
        assert session.progress().state == "running"
        server.stats = JobNotRunning()
        found = session.progress()
    assert (found.state, found.round, found.ended) == ("ending", 2, False)

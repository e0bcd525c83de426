# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""When the server takes a returned site back into a job, with FLARE's engine replaced."""

import threading
from types import SimpleNamespace

import pytest
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode, RunProcessKey, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply
from nvflare.app_common.job_schedulers.job_scheduler import DefaultJobScheduler
from nvflare.private.admin_defs import Message
from nvflare.private.defs import ERROR_MSG_PREFIX

from fedpeft.core.errors import FedpeftError
from fedpeft.flare import returning_sites
from fedpeft.flare.returning_sites import (
    AWAY,
    NOT_AGAIN,
    PART_ENDED,
    RETURNED,
    AwaySites,
    ReturningSites,
    start_again,
)

JOB = "a-job"
JOB_OBJECT = SimpleNamespace(job_id=JOB, meta={"name": "small"}, resource_spec={})


class Engine:
    """The server's engine with one job at two sites; what it is asked for is kept in `calls`."""

    def __init__(self, *, answer=ReturnCode.OK, enough=True, started="Start the client app..."):
        self.clients = {name: Client(name, f"{name}-1") for name in ("north", "south")}
        self.job_runner = SimpleNamespace(
            client_outcome_wait_timeout=900.0,
            lock=threading.Lock(),
            _pending_client_outcomes={JOB: set()},
            running_jobs={JOB: JOB_OBJECT},
            resolve_client_outcome=lambda job, site: self.calls.append(("resolve", job, site)),
        )
        self.run_processes = {JOB: {RunProcessKey.PARTICIPANTS: {c.token: c for c in self.clients.values()}}}
        self.answer, self.enough, self.started, self.calls, self.commands = answer, enough, started, [], {}
        self.scheduler = DefaultJobScheduler()

    def get_client_from_name(self, name):
        return self.clients.get(name)

    def get_component(self, name):
        return {SystemComponents.JOB_SCHEDULER: self.scheduler}.get(name)

    def send_app_command(self, job, topic, data, timeout):
        self.calls.append((topic, job, data["site"]))
        return self.answer and make_reply(self.answer)

    def check_client_resources(self, job, needs, fl_ctx):
        return dict.fromkeys(needs, (self.enough, "reserved"))

    def start_client_job(self, job, orders, fl_ctx):
        ((site, order),) = orders.items()
        self.calls.append(("start", site, order.token))
        return [SimpleNamespace(reply=self.started and Message(topic="reply", body=self.started))]

    def fire_event(self, event, fl_ctx):
        pass

    def new_context(self):
        context = FLContext()
        context.get_engine = lambda: self
        return context

    def register_app_command(self, topic, function):
        self.commands[topic] = function

    def sync_clients_from_main_process(self):
        self.calls.append("sync")

    def returns(self, site):
        """The site's client process registers again."""
        self.clients[site] = Client(site, f"{site}-{len(self.calls) + 2}")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Threads run where they are started."""
    now = lambda target, args, daemon: SimpleNamespace(start=lambda: target(*args))  # noqa: E731
    monkeypatch.setattr(returning_sites.threading, "Thread", now)


def fire(component, engine, event, *, job=JOB, data=None):
    with engine.new_context() as context:
        context.set_prop(FLContextKey.EVENT_DATA, data or {"job_id": job}, private=True, sticky=False)
        component.handle_event(event, context)


def watching(engine, **settings):
    component = ReturningSites(**settings)
    fire(component, engine, EventType.SYSTEM_START)
    fire(component, engine, EventType.JOB_STARTED)
    return component


def beat(component, engine, times=1):
    for _ in range(times):
        fire(component, engine, EventType.CLIENT_HEARTBEAT_RECEIVED)


def started(engine):
    return [call for call in engine.calls if call[0] == "start"]


def test_a_returned_site_is_started_once():
    engine = Engine()
    component = watching(engine)
    beat(component, engine, 2)
    assert engine.calls == []
    engine.returns("south")
    beat(component, engine, 3)
    assert engine.calls == [("resolve", JOB, "south"), (RETURNED, JOB, "south"), ("start", "south", "reserved")]
    participants = engine.run_processes[JOB][RunProcessKey.PARTICIPANTS]
    assert {client.name: token for token, client in participants.items()} == {"north": "north-1", "south": "south-2"}
    assert engine.job_runner._pending_client_outcomes == {JOB: {"south"}}, "its end is heard of as the first part's was"
    engine.returns("south")
    beat(component, engine)
    assert len(started(engine)) == 2


def test_a_heartbeat_meanwhile_does_not_undo_that_the_new_parts_end_is_waited_for():
    """Any site's heartbeat comes while a site starts, which takes seconds."""
    engine = Engine()
    component, started_as_ever = watching(engine), engine.start_client_job

    def start(*order):
        beat(component, engine, 2)
        return started_as_ever(*order)

    engine.start_client_job = start
    engine.returns("south")
    beat(component, engine)
    assert [call[0] for call in engine.calls] == ["resolve", RETURNED, "start"]


def test_a_site_is_tried_only_so_often():
    engine = Engine(started=f"{ERROR_MSG_PREFIX}: no")
    component = watching(engine, attempts=2)
    engine.returns("north")
    beat(component, engine, 5)
    assert len(started(engine)) == 2


@pytest.mark.parametrize("attempts", [0, 2])
def test_a_site_that_cannot_be_started_again_is_away_for_the_job(attempts):
    engine, sites = Engine(started=f"{ERROR_MSG_PREFIX}: no"), AwaySites()
    component = watching(engine, attempts=attempts)
    with engine.new_context() as context:
        sites.handle_event(EventType.START_RUN, context)
        engine.send_app_command = lambda job, topic, data, timeout: (
            engine.commands[topic](topic, data, context) or make_reply(ReturnCode.OK)
        )
    engine.returns("north")
    beat(component, engine, attempts)
    assert not sites.reason("north")
    beat(component, engine, 2)
    assert sites.reason("north") == NOT_AGAIN


def test_a_site_that_is_gone_or_of_another_job_is_left_alone():
    engine = Engine()
    component = watching(engine)
    engine.clients.pop("south")
    beat(component, engine)
    fire(component, engine, EventType.JOB_COMPLETED)
    engine.returns("north")
    beat(component, engine)
    assert engine.calls == []


def test_a_site_that_returns_after_the_last_round_does_not_spoil_the_job():
    engine = Engine()
    component = watching(engine)
    engine.run_processes.clear()
    engine.returns("south")
    beat(component, engine)
    assert engine.calls == [("resolve", JOB, "south")]


def test_a_finished_job_waits_half_a_minute():
    watching(engine := Engine())
    assert engine.job_runner.client_outcome_wait_timeout == 30


def test_a_kit_without_the_interval_gets_one_that_can_be_doubled_as_often_as_a_job_is_tried():
    watching(engine := Engine())
    assert type(engine.scheduler.min_schedule_interval) is int
    assert engine.scheduler.min_schedule_interval == 10


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (Engine(answer=None), "does not know of sites that return"),
        (Engine(answer=ReturnCode.BAD_REQUEST_DATA), "does not know of sites that return"),
        (Engine(enough=False), "does not have what the job needs"),
        (Engine(started=f"{ERROR_MSG_PREFIX}: Client app does not exist."), "its own log says why"),
        (Engine(started=None), "its own log says why"),
    ],
)
def test_a_site_that_cannot_rejoin_is_reported_with_the_reason(engine, message):
    with engine.new_context() as context, pytest.raises(FedpeftError, match=message):
        start_again(engine, JOB, engine.clients["south"], context)


def test_no_site_rejoins_a_job_that_has_ended():
    engine = Engine()
    engine.run_processes.clear()
    with engine.new_context() as context, pytest.raises(FedpeftError, match="has ended"):
        start_again(engine, JOB, engine.clients["south"], context)


ENDED = {"job": JOB, "site": "south", "reason": "while it started"}


def test_the_jobs_process_hears_who_is_away_as_soon_as_it_answers():
    component = watching(engine := Engine(answer=None))
    fire(component, engine, PART_ENDED, data=ENDED)
    engine.answer = ReturnCode.OK
    beat(component, engine, 3)
    assert engine.calls == [(AWAY, JOB, "south")] * 2


@pytest.mark.parametrize("event", [EventType.JOB_COMPLETED, EventType.JOB_ABORTED])
def test_a_job_that_has_ended_hears_nothing(event):
    component = watching(engine := Engine(answer=None))
    fire(component, engine, PART_ENDED, data=ENDED)
    fire(component, engine, event)
    beat(component, engine)
    engine.run_processes.clear()
    fire(component, engine, PART_ENDED, data=ENDED)
    beat(component, engine)
    assert engine.calls == [(AWAY, JOB, "south")]


def test_a_site_that_has_returned_is_not_reported_away():
    component = watching(engine := Engine(answer=None))
    fire(component, engine, PART_ENDED, data=ENDED)
    engine.answer = ReturnCode.OK
    engine.returns("south")
    beat(component, engine, 2)
    assert [call for call in engine.calls if call[0] in (AWAY, RETURNED)] == [
        (AWAY, JOB, "south"),
        (RETURNED, JOB, "south"),
    ]


def test_the_jobs_process_knows_who_is_away_and_the_new_tokens():
    engine, sites = Engine(), AwaySites()
    with engine.new_context() as context:
        sites.handle_event("another event", context)
        assert not engine.commands
        sites.handle_event(EventType.START_RUN, context)
        assert engine.commands[AWAY](AWAY, ENDED, context) == {}
        assert (sites.reason("south"), sites.reason("north")) == ("while it started", "")
        assert engine.calls == []
        assert engine.commands[RETURNED](RETURNED, {"site": "south"}, context) == {}
    assert sites.reason("south") == ""
    assert engine.calls == ["sync"]


@pytest.mark.parametrize("settings", [{"attempts": -1}, {"patience": 0}])
def test_settings_are_checked(settings):
    with pytest.raises(FedpeftError, match=next(iter(settings))):
        ReturningSites(**settings)

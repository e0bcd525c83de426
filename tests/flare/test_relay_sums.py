# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Who may ask a relay for what, and what a site sends to which relay."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_constant import ReturnCode as TaskReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_opt.pt.lazy_tensor_dict import LazyTensorDict
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply, new_cell_message
from nvflare.fuel.utils.fobs import FOBSContextKey
from safetensors.torch import save_file

from fedpeft.core.errors import FedpeftError
from fedpeft.flare import relay
from fedpeft.flare.executor import SiteExecutor
from fedpeft.flare.messages import FIELDS, to_model
from fedpeft.flare.relay import ADD_UP, FETCH, MEASURE, OPEN, REACH, TAKE, CellRelays, SumDesk, fetch, hand_over
from fedpeft.protocol.types import (
    METRICS,
    TRAIN,
    Measured,
    PartialSum,
    SumOrder,
    SumQuery,
    TrainOrder,
    TrainReply,
    Upload,
)
from fedpeft.server.relay_sums import GroupSum

KEY = "layer.0.output.down.weight"
START = {KEY: torch.zeros(3, 4)}
RELAY, JOB = "relay-a", "job-1"
SERVER, NORTH, SOUTH = f"server.{JOB}", f"{RELAY}.north.{JOB}", f"{RELAY}.south.{JOB}"


class Wire:
    """Cells of one relay and of those that send to it, each message with the origin that its sender has.

    Args:
        names: what a relay's own cell is called.

    Attributes:
        waits: how often FLARE asks a sender whether it waits longer, before the relay answers.
    """

    def __init__(self, name=RELAY):
        self.name, self.answers, self.reached, self.context, self.waits = name, {}, [], {}, 0

    def get_fqcn(self):
        return self.name

    def register_request_cb(self, *, channel, topic, cb):
        self.answers[topic] = cb

    def update_fobs_context(self, values):
        self.context |= values

    def of(self, origin):
        return Sender(self, origin)


class Sender:
    def __init__(self, wire, origin):
        self._wire, self._origin = wire, origin

    def get_fqcn(self):
        return self._origin

    @property
    def core_cell(self):
        return self

    def send_request(self, *, channel, topic, target, request, timeout, abort_signal=None, progress_wait_cb=None):
        if target != self._wire.name or topic not in self._wire.answers:
            return make_reply(ReturnCode.TARGET_UNREACHABLE)
        if topic == REACH:
            return self._wire.answers[topic](request)
        self._wire.reached.append((topic, self._origin))
        if not all(progress_wait_cb() for _ in range(self._wire.waits)):
            return make_reply(ReturnCode.TIMEOUT)
        request.set_header(MessageHeaderKey.ORIGIN, self._origin)
        return self._wire.answers[topic](request)


@pytest.fixture
def wire(monkeypatch, tmp_path):
    monkeypatch.setattr(relay, "limit_messages", lambda limit: None)
    made = Wire()
    SumDesk(made, tmp_path)
    return made


def order(weights=("north", "south"), round=1):
    return SumOrder(
        round=round,
        weights=dict.fromkeys(weights, 3),
        together=len(weights),
        dtype="float32",
        masked=False,
        state=START,
    )


def relays(wire, origin=SERVER):
    return CellRelays(wire.of(origin), lambda site: f"{RELAY}.{site}" if site != "far" else site, tuple)


def test_a_round_goes_through_the_relay(wire):
    server = relays(wire)
    assert server.relays_of(["north", "far"]) == {"north": RELAY, "far": ""}
    server.ask(RELAY, order(), Measured)
    for number, cell in enumerate((NORTH, SOUTH)):
        state = fetch(wire.of(cell), RELAY, 1)
        assert torch.equal(state[KEY], START[KEY])
        hand_over(wire.of(cell), RELAY, Upload(round=1, state={KEY: state[KEY] + 1 + number}))
    assert server.ask(RELAY, SumQuery(round=1), Measured).lengths == {"north": 1.0, "south": 2.0}
    total = server.ask(RELAY, SumQuery(round=1, sites=["north", "south"]), PartialSum)
    assert torch.equal(total.state[KEY], torch.full((3, 4), 9 * 2**32))
    with pytest.raises(FedpeftError, match="no sum"):  # it keeps no adapter longer
        server.ask(RELAY, SumQuery(round=1), Measured)


@pytest.mark.parametrize("origin", [NORTH, f"{RELAY}.{JOB}", "server", f"server.x.{JOB}", f"far.{JOB}", JOB])
@pytest.mark.parametrize(
    "message",
    [order(("north",)), SumQuery(round=1), SumQuery(round=1, sites=["north"])],
    ids=["open", "measure", "sum"],
)
def test_only_a_jobs_process_at_the_server_orders_sums(wire, origin, message):
    relays(wire).ask(RELAY, order(), Measured)
    with pytest.raises(FedpeftError, match="only a job's process at the server"):
        relays(wire, origin).ask(RELAY, message, PartialSum if getattr(message, "sites", ()) else Measured)


def test_the_server_orders_sums_of_its_own_job_alone(wire):
    relays(wire).ask(RELAY, order(), Measured)
    with pytest.raises(FedpeftError, match="no sum"):
        relays(wire, "server.job-2").ask(RELAY, SumQuery(round=1), Measured)


@pytest.mark.parametrize("origin", [f"far.{JOB}", f"relay-b.north.{JOB}", f"{RELAY}.x.north.{JOB}", SERVER, "north"])
@pytest.mark.parametrize("topic", [FETCH, TAKE])
def test_only_a_site_behind_the_relay_takes_part(wire, origin, topic):
    relays(wire).ask(RELAY, order(), Measured)
    message = SumQuery(round=1) if topic == FETCH else Upload(round=1, state=START)
    request = new_cell_message({MessageHeaderKey.ORIGIN: origin}, relay.packed(message))
    answer = wire.answers[topic](request)
    assert "only a site behind" in answer.payload[relay.PROBLEM]
    assert relays(wire).ask(RELAY, SumQuery(round=1), Measured).lengths == {}


def test_a_site_that_takes_no_part_gets_no_adapter(wire):
    relays(wire).ask(RELAY, order(("north",)), Measured)
    with pytest.raises(FedpeftError, match="takes no part"):
        fetch(wire.of(SOUTH), RELAY, 1)


def test_a_site_of_another_job_gets_no_adapter(wire):
    relays(wire).ask(RELAY, order(), Measured)
    with pytest.raises(FedpeftError, match="no sum"):
        fetch(wire.of(f"{RELAY}.north.job-2"), RELAY, 1)


SENDS = {
    "fetch": lambda cell, relay, **how: fetch(cell, relay, 1, **how),
    "hand over": lambda cell, relay, **how: hand_over(cell, relay, Upload(round=1, state=START), **how),
}


@pytest.mark.parametrize("named", ["relay-b", "north", "server", "", f"{RELAY}.south"])
@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_a_site_sends_its_adapter_to_its_own_relay_alone(wire, named, send):
    with pytest.raises(FedpeftError, match="which it is not"):
        send(wire.of(NORTH), named)
    assert wire.reached == []


@pytest.fixture
def slow(wire, monkeypatch):
    """A relay with an order, that answers when FLARE has asked three times, which takes longer than `SECONDS`."""
    clock = itertools.count(step=relay.SECONDS)
    monkeypatch.setattr(relay, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    relays(wire).ask(RELAY, order(), Measured)
    wire.waits = 3
    return wire


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_a_site_waits_for_its_relay_while_its_task_goes_on(slow, send):
    send(slow.of(NORTH), RELAY, ended=lambda: False)


ENDS = {"task": lambda wire: True, "relay": lambda wire: not wire.answers.pop(REACH)}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_a_site_waits_no_longer_once_its_task_or_its_relay_has_ended(slow, send, name):
    reason = {"task": "the round ended before relay relay-a had answered"}.get(name, "relay relay-a does not answer")
    with pytest.raises(FedpeftError, match=reason):
        send(slow.of(NORTH), RELAY, ended=lambda: ENDS[name](slow))


def test_a_site_without_a_relay_sends_it_to_none(wire):
    for named in ("", RELAY, "north"):
        with pytest.raises(FedpeftError, match="which it is not"):
            hand_over(wire.of(f"north.{JOB}"), named, Upload(round=1, state=START))


def test_a_global_adapter_of_another_round_is_refused(wire):
    relays(wire).ask(RELAY, order(round=2), Measured)
    with pytest.raises(FedpeftError, match="round 2"):
        fetch(wire.of(NORTH), RELAY, 1)


def added(wire, round):
    """The sum of a round of one site, which sends the number of the round."""
    hand_over(wire.of(NORTH), RELAY, Upload(round=round, state={KEY: torch.full((3, 4), float(round))}))
    return relays(wire).ask(RELAY, SumQuery(round=round, sites=["north"]), PartialSum)


@pytest.mark.parametrize(("kind", "sites"), [(Measured, []), (PartialSum, ["north"])], ids=["measure", "sum"])
def test_a_query_of_another_round_changes_nothing(wire, kind, sites):
    """Such as one that was still on its way when the server began the next round."""
    server = relays(wire)
    for round in (1, 2):
        server.ask(RELAY, order(("north",), round=round), Measured)
    with pytest.raises(FedpeftError, match="round 1 in round 2"):
        server.ask(RELAY, SumQuery(round=1, sites=sites), kind)
    assert torch.equal(added(wire, 2).state[KEY], torch.full((3, 4), 3 * 2 * 2**32))


def test_a_slow_sum_does_not_drop_that_of_the_next_round(wire, monkeypatch):
    total = GroupSum.total

    def slow(group, sites):
        if group.round == 1:
            relays(wire).ask(RELAY, order(("north",), round=2), Measured)
        return total(group, sites)

    monkeypatch.setattr(GroupSum, "total", slow)
    relays(wire).ask(RELAY, order(("north",)), Measured)
    assert [added(wire, round).round for round in (1, 2)] == [1, 2]


@pytest.mark.parametrize("topic", [OPEN, FETCH, TAKE, MEASURE, ADD_UP])
@pytest.mark.parametrize("content", [None, "text", {}, {"fields": {"round": "x"}}, {"fields": {"round": 1, "more": 2}}])
def test_what_is_no_message_is_answered_by_a_reason(wire, topic, content):
    relays(wire).ask(RELAY, order(), Measured)
    origin = NORTH if topic in (FETCH, TAKE) else SERVER
    answer = wire.answers[topic](new_cell_message({MessageHeaderKey.ORIGIN: origin}, content))
    assert answer.payload[relay.PROBLEM]
    assert relays(wire).ask(RELAY, SumQuery(round=1), Measured).lengths == {}


def test_a_relay_keeps_the_sums_of_the_jobs_that_used_it_last(wire):
    for number in range(relay.MAX_SUMS):
        relays(wire, f"server.job-{number}").ask(RELAY, order(), Measured)
    relays(wire, "server.job-0").ask(RELAY, SumQuery(round=1), Measured)
    relays(wire, "server.one-more").ask(RELAY, order(), Measured)
    with pytest.raises(FedpeftError, match="no sum of this job is ordered at this relay: it was restarted, or"):
        relays(wire, "server.job-1").ask(RELAY, SumQuery(round=1), Measured)
    relays(wire, "server.job-0").ask(RELAY, SumQuery(round=1), Measured)


def test_a_relay_that_does_not_answer_is_named(wire):
    asking = relays(wire)
    for _ in range(2):  # it may be started again
        with pytest.raises(FedpeftError, match="relay relay-b does not answer"):
            asking.ask("relay-b", order(), Measured)


def test_a_relay_that_is_there_and_silent_costs_two_requests_of_the_job(wire):
    wire.answers[OPEN] = lambda request: make_reply(ReturnCode.TIMEOUT)
    asking = CellRelays(wire.of(SERVER), lambda site: f"{RELAY}.{site}", tuple, seconds=0.0)
    for _ in range(2):
        with pytest.raises(FedpeftError, match="relay relay-a does not answer"):
            asking.ask(RELAY, order(), Measured)
    asked = len(wire.reached)
    with pytest.raises(FedpeftError, match="gave no answer 2 times, so it is left out: restart it"):
        asking.ask(RELAY, order(round=2), Measured)
    assert len(wire.reached) == asked


def test_a_relay_that_is_silent_once_between_two_sums_is_asked_again(wire):
    opens, silent = wire.answers[OPEN], lambda request: make_reply(ReturnCode.TIMEOUT)
    asking = CellRelays(wire.of(SERVER), lambda site: f"{RELAY}.{site}", tuple, seconds=0.0)
    for number in range(1, 7):
        wire.answers[OPEN] = silent
        with pytest.raises(FedpeftError, match="does not answer"):
            asking.ask(RELAY, order(("north",), round=number), Measured)
        wire.answers[OPEN] = opens
        asking.ask(RELAY, order(("north",), round=number), Measured)
        hand_over(wire.of(NORTH), RELAY, Upload(round=number, state=START))
        asking.ask(RELAY, SumQuery(round=number, sites=["north"]), PartialSum)


def test_a_relay_that_only_takes_orders_is_left_out(wire):
    wire.answers[MEASURE] = lambda request: make_reply(ReturnCode.TIMEOUT)
    asking = CellRelays(wire.of(SERVER), lambda site: f"{RELAY}.{site}", tuple, seconds=0.0)
    for number in (1, 2):
        asking.ask(RELAY, order(round=number), Measured)
        with pytest.raises(FedpeftError, match="does not answer"):
            asking.ask(RELAY, SumQuery(round=number), Measured)
    with pytest.raises(FedpeftError, match="is left out"):
        asking.ask(RELAY, order(round=3), Measured)


@pytest.mark.parametrize("path", ["chest.x", "chest.chest", "north.chest", "relay-a.north", "idle.chest"])
def test_a_site_is_no_relay_of_itself_or_of_another(wire, path):
    """Nor is one that takes no part in the round."""
    asking = CellRelays(wire.of(SERVER), {"chest": path, "north": "north"}.get, lambda: ["chest", "idle"])
    assert asking.relays_of(["chest", "north"]) == {"chest": "", "north": ""}


def test_large_adapters_are_added_from_the_relays_disk(wire, monkeypatch, tmp_path):
    """Small ones stay in memory; the sum is the same."""
    relays(wire).ask(RELAY, order(), Measured)
    assert wire.context == {}
    monkeypatch.setattr(relay, "MAX_IN_MEMORY", 50)
    relays(wire).ask(RELAY, order(), Measured)
    assert wire.context[FOBSContextKey.TENSOR_DISK_OFFLOAD]
    for number, cell in enumerate((NORTH, SOUTH)):
        save_file({KEY: torch.full((3, 4), float(1 + number))}, tmp_path / str(number))
        folder = tmp_path / f"adapter-{number}"
        folder.mkdir()
        save_file({"t": torch.full((3, 4), float(1 + number))}, folder / "chunk")
        tensors = LazyTensorDict({KEY: (str(folder / "chunk"), "t")}, str(folder))
        content = relay.packed(Upload(round=1, state={}))
        content[relay.STATE] = {KEY: tensors.make_lazy_ref(KEY)}
        request = new_cell_message({MessageHeaderKey.ORIGIN: cell}, content)
        assert relay.PROBLEM not in wire.answers[TAKE](request).payload
    assert relays(wire).ask(RELAY, SumQuery(round=1), Measured).lengths == {"north": 1.0, "south": 2.0}
    total = relays(wire).ask(RELAY, SumQuery(round=1, sites=["south"]), PartialSum)
    assert torch.equal(total.state[KEY], torch.full((3, 4), 6 * 2**32))


@pytest.fixture
def site(wire, tmp_path):
    """Function from an order and a reply to what FLARE of a site behind the relay reads and sends, with its problem."""
    workspace = SimpleNamespace(get_run_dir=lambda job: str(tmp_path))

    def run(order, reply, *, aborted=False):
        signal = Signal()
        if aborted:
            signal.trigger("")
        executor, context = SiteExecutor(), FLContext()
        engine = SimpleNamespace(get_cell=lambda: wire.of(NORTH), get_workspace=lambda: workspace)
        props = {ReservedKey.ENGINE: engine, ReservedKey.IDENTITY_NAME: "north", ReservedKey.RUN_ABORT_SIGNAL: signal}
        for key, value in props.items():
            context.set_prop(key, value, private=True, sticky=False)
        read = FLModelUtils.to_shareable(to_model(order, round=1))
        context.set_prop(FLContextKey.TASK_NAME, TRAIN, private=True, sticky=False)
        context.set_prop(FLContextKey.TASK_DATA, read, private=True, sticky=False)
        executor.handle_event(EventType.BEFORE_TASK_DATA_FILTER, context)
        executor._order = order
        sent = FLModelUtils.to_shareable(to_model(reply, round=1))
        context.set_prop(FLContextKey.TASK_RESULT, sent, private=True, sticky=False)
        executor.handle_event(EventType.AFTER_TASK_RESULT_FILTER, context)
        return read["DXO"]["data"], sent["DXO"]["data"], sent["DXO"]["meta"][FIELDS]["problem"]

    return run


def of_relay(relay, state):
    values = {"lineage": "first", "base": 0, "version": 0, "layers": None, "scored": False}
    return TrainOrder(round=1, relay=relay, state=state, **values)


def answered(problem="", round=1):
    values = {"samples": 3, "metrics": dict.fromkeys(METRICS), "scores": [], "seconds": 1.0, "problem": problem}
    return TrainReply(round=round, state={} if problem else {KEY: torch.ones(3, 4)}, **values)


def test_a_site_fetches_at_its_relay_and_hands_over_there(wire, site):
    relays(wire).ask(RELAY, order(), Measured)
    fetched, sent, problem = site(of_relay(RELAY, {}), answered())
    assert torch.equal(fetched[KEY], START[KEY])
    assert (sent, problem) == ({}, "")
    assert relays(wire).ask(RELAY, SumQuery(round=1), Measured).lengths == {"north": 1.0}


@pytest.mark.parametrize("named", ["relay-b", "server", "south"])
def test_no_adapter_leaves_a_site_for_a_relay_that_is_not_its_own(wire, site, named):
    """Nor does the server get it instead; it learns that this reply counts for nothing."""
    assert site(of_relay(named, {}), answered()) == ({}, {}, "not-at-relay")
    assert wire.reached == []


def test_a_relay_that_lost_its_order_gets_no_adapter_and_the_server_none_either(wire, site):
    assert site(of_relay(RELAY, {}), answered()) == ({}, {}, "not-at-relay")


@pytest.mark.parametrize("aborted", [False, True])
def test_of_an_aborted_job_no_problem_blames_the_relay(wire, site, tmp_path, aborted):
    site(of_relay(RELAY, {}), answered(), aborted=aborted)
    assert bool([*tmp_path.rglob("problem.json")]) is not aborted


def test_a_task_of_an_aborted_job_is_not_begun(wire):
    signal, context = Signal(), FLContext()
    signal.trigger("")
    context.set_prop(FLContextKey.TASK_NAME, TRAIN, private=True, sticky=False)
    assert SiteExecutor().execute(TRAIN, Shareable(), context, signal).get_return_code() == TaskReturnCode.TASK_ABORTED


def test_a_reply_with_a_problem_brings_no_adapter_to_the_relay(wire, site):
    relays(wire).ask(RELAY, order(), Measured)
    site(of_relay(RELAY, {}), answered("training-diverged"))
    assert relays(wire).ask(RELAY, SumQuery(round=1), Measured).lengths == {}


def test_without_a_relay_the_adapter_goes_to_the_server(wire, site):
    fetched, sent, problem = site(of_relay("", START), answered())
    assert torch.equal(fetched[KEY], START[KEY])
    assert torch.equal(sent[KEY], torch.ones(3, 4))
    assert problem == ""
    assert wire.reached == []

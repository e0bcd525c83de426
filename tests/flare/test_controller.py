# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's rounds against sites that are functions, without FLARE's network."""

import itertools
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from harness import (
    LAYERS,
    METHOD,
    SCHEDULE,
    SCHEMA,
    SITES,
    Harness,
    assigned,
    but,
    introduction,
    reply,
    scheduled,
    scores,
)
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import Task
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import ReservedHeaderKey, Shareable

from fedpeft.flare import controller as module
from fedpeft.flare.controller import FederationController
from fedpeft.flare.messages import to_model
from fedpeft.job.settings import ServerJob
from fedpeft.protocol.fields import MIN_TENSOR
from fedpeft.protocol.reply_contract import check_train_reply
from fedpeft.protocol.types import SCORE, TRAIN, Introduction, TrainOrder
from fedpeft.server.handshake import SLACK


@pytest.mark.slow
def test_a_job_averages_records_and_completes(run, pictures):
    harness, manifest, history = run()
    assert manifest["status"] == "completed"
    assert manifest["rounds"] == 2
    assert len(harness.saved) == 2
    assert torch.equal(harness.saved[-1]["layer.0.output.down.weight"], torch.full((2, 3), 3.0))
    assert set(history["rounds"][0]["sites"]) == set(SITES)
    assert "report/convergence.svg" in manifest["files"]


BELOW_THE_QUORUM = {
    "NaN": lambda site, order: reply(site, order, state={k: torch.full(s, float("nan")) for k, s in SCHEMA.items()}),
    "silence": lambda site, order: None,
}


@pytest.mark.parametrize("kind", BELOW_THE_QUORUM)
def test_below_the_quorum_the_job_ends_with_the_reason_and_keeps_its_rounds(run, kind):
    """Other replies, above the quorum: tests/flare/test_hostile_replies.py."""
    harness, manifest, history = run(train=but("chest", BELOW_THE_QUORUM[kind], rounds=(2,)))
    assert manifest["status"] == "failed"
    assert "round 2 ended with too few valid replies (2, the quorum is 3)" in manifest["reason"]
    assert "chest" in manifest["reason"]
    assert harness.panics == [manifest["reason"]]
    assert len(history["rounds"]) == manifest["rounds"] == 1


@pytest.mark.parametrize("task", ["train", "score"])
def test_a_reply_that_comes_after_the_wait_counts_or_is_missed_by_name(run, task, monkeypatch):
    """It is in FLARE's hands while the server looks who is silent."""
    held = []

    def send(harness, **order):
        if (order["task_name"], *order["targets"], order["data"].current_round) == (task, "chest", 1) and not held:
            held.append(order)
        else:
            sent(harness, **order)

    def ends(harness, inbox, sites):
        if len(held) == 1:
            held.append({})
            sent(harness, **held[0])
        ended(harness, inbox, sites)

    sent, ended = Harness.send_model, Harness._end_refused_tasks
    monkeypatch.setattr(Harness, "send_model", send)
    monkeypatch.setattr(Harness, "_end_refused_tasks", ends)
    scored = {"introduce": scheduled, "train": assigned, "schedule": SCHEDULE} if task == "score" else {}
    _, manifest, history = run(**scored, quorum=2)
    assert manifest["status"] == "completed", manifest.get("reason")
    first = history["rounds"][0]
    assert {*first["sites"], *first["rejected"]} == set(SITES)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": "0.0.1"}, "site chest runs fedpeft 0.0.1"),
        ({"schema": {"layer.0.output.down.weight": [9, 3], "layer.0.output.up.weight": [3, 9]}}, r"at site chest"),
        ({"schema": {"layer.0.output.down.weight": [2, 3]}}, "sites slake and chest differ"),
        ({"samples": {"train": 5}}, "site chest sent no counts of train, validation, test samples"),
        ({"dataset": "MRN 4711"}, "site chest names an unknown dataset"),
        ({"metric": "MRN 4711"}, "site chest names an unknown metric"),
        ({"problem": "data-unusable"}, "site chest cannot take part: its data cannot be used"),
    ],
)
def test_a_site_that_does_not_fit_ends_the_job_by_name(run, changes, reason):
    import re

    def introduce(site):
        if site != "chest":
            return introduction(site)
        fields = {**vars(introduction(site)), **changes}
        return Introduction(**fields)

    harness, manifest, _ = run(introduce)
    assert manifest["status"] == "failed"
    assert re.search(reason, manifest["reason"])
    assert harness.panics


def test_declared_widths_may_differ(run):
    wide = {"layer.0.output.down.weight": [4, 3], "layer.0.output.up.weight": [3, 4]}

    def train(site, order):
        schema = wide if site == "chest" else SCHEMA
        torch.manual_seed(order.round)
        return reply(site, order, state={key: torch.randn(shape) for key, shape in schema.items()})

    default = {"houlsby": {"reduction_factor": 1.5}}
    method = {"aggregation": "pia", "settings": default, "site_settings": {"chest": {"reduction_factor": 0.75}}}
    _, manifest, _ = run(lambda s: introduction(s, schema=wide if s == "chest" else SCHEMA), train, method=method)
    assert manifest["status"] == "completed", manifest.get("reason")


@pytest.mark.parametrize(("aggregation", "largest"), [("none", SLACK), ("fedavg", 2 * MIN_TENSOR * 11 // 10 + SLACK)])
def test_what_no_site_sends_bounds_no_message(run, monkeypatch, aggregation, largest):
    limits = []
    monkeypatch.setattr(module, "limit_messages", limits.append)
    long = {key: [side * 3 for side in shape] for key, shape in SCHEMA.items()}
    run(lambda site: introduction(site, schema=long), method={"aggregation": aggregation})
    assert limits[-1].size == largest


def test_a_site_that_never_answers_is_named(run):
    _, manifest, _ = run(lambda site: None if site == "vqa-rad" else introduction(site))
    assert "site vqa-rad did not answer within" in manifest["reason"]


@pytest.mark.parametrize(
    ("section", "values", "reason"),
    [
        ("training", {"rounds": None}, "training.rounds is None"),
        ("federation", {"sites": []}, "at least one site"),
        ("method", None, "method is None"),
    ],
)
def test_an_undefined_variable_ends_the_job_with_its_name(run, monkeypatch, section, values, reason):
    original = Harness.__init__

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self._sections[section] = values

    monkeypatch.setattr(Harness, "__init__", init)
    _, manifest, _ = run()
    assert reason in manifest["reason"]


@pytest.mark.slow
def test_each_site_trains_its_layers_and_the_others_keep_their_bits(run, pictures):
    orders = []

    def train(site, order):
        orders.append((site, order))
        return assigned(site, order)

    greedy = {**SCHEDULE, "weight_diversity": 0.0}
    harness, manifest, history = run(scheduled, train, schedule=greedy)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert all(order.layers == [0] for _, order in orders)
    last = harness.saved[-1]
    assert torch.equal(last["layer.0.output.up.weight"], torch.ones(2, 2))
    assert torch.equal(last["layer.1.output.up.weight"], torch.zeros(2, 2))
    assert history["rounds"][0]["schedule"]["layers"] == {site: [0] for site in SITES}
    assert {"report/schedule.svg", "report/fronts.svg"} <= set(manifest["files"])


def test_a_site_is_sent_only_what_it_lacks(run):
    orders, trained = [], []

    def score(site, order):
        orders.append((order.round, site, sorted(order.state)))
        return scores(site, order)

    def train(site, order):
        trained.append(sorted(order.state))
        return assigned(site, order)

    run(scheduled, train, score, schedule={**SCHEDULE, "weight_diversity": 0.0})
    assert all(keys == sorted(LAYERS) for number, _, keys in orders if number == 1)
    assert all({key.split(".")[1] for key in keys} == {"0"} for number, _, keys in orders if number == 2)
    assert all(keys == [] for keys in trained)


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (lambda s, o: scores(s, o, scores=[0.5, float("nan"), 0.2]), "site slake sent nan as the score of layer 1"),
        (lambda s, o: scores(s, o, scores=[1.0]), "site slake sent 1 layer scores, 3 were asked for"),
        (
            lambda s, o: scores(s, o, problem="out-of-memory"),
            "could not score round 1: a batch does not fit into its memory",
        ),
        (lambda s, o: None, "site slake sent no scores in round 1"),
    ],
)
def test_a_bad_score_is_refused_by_name(run, score, reason):
    _, manifest, _ = run(scheduled, assigned, score, schedule=SCHEDULE)
    assert manifest["status"] == "failed"
    assert reason in manifest["reason"]


def test_the_scores_of_a_single_site_are_waited_for(run, monkeypatch):
    """The quorum is reached without that site, so the grace period would begin at once and end before they come."""
    collect, needed = Harness.collect, {}

    def noted(harness, task, orders, *rest, **how):
        needed[task, how["round"]] = len(orders), how["needed"]
        return collect(harness, task, orders, *rest, **how)

    def late(site, order):
        return scores(site, order) if (site, order.round) != ("chest", 1) else None

    monkeypatch.setattr(Harness, "collect", noted)
    _, manifest, _ = run(scheduled, assigned, late, schedule={**SCHEDULE, "every": 9}, quorum=2, rounds=3)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert [needed[SCORE, round] for round in (1, 2, 3)] == [(3, 2), (1, 1), (0, 0)]


def test_a_reply_with_unassigned_layers_is_refused(run):
    everything = {key: torch.ones(shape) for key, shape in LAYERS.items()}
    _, manifest, _ = run(scheduled, lambda s, o: reply(s, o, state=everything), schedule=SCHEDULE)
    assert "unannounced keys layer." in manifest["reason"]


@pytest.mark.parametrize(
    ("schedule", "announced", "given"),
    [
        (SCHEDULE, 3, 1),
        (SCHEDULE, 0, 1),
        ({**SCHEDULE, "site_budgets": {SITES[0]: 2}}, 3, 2),
        ({**SCHEDULE, "budget": 0, "budget_range": [1, 1]}, 2, 1),
        ({**SCHEDULE, "budget": 0}, 3, None),  # what its memory holds
        (None, 3, None),
    ],
)
def test_a_site_gets_no_more_layers_than_the_job_gives_it(run, schedule, announced, given):
    def introduce(site):
        honest = scheduled(site) if schedule else introduction(site)
        return replace(honest, budget=announced) if site == SITES[0] else honest

    _, manifest, _ = run(introduce, assigned if schedule else reply, schedule=schedule or {})
    if given is None:
        assert manifest["status"] == "completed", manifest.get("reason")
        return
    assert f"announces {announced} layers as budget, the job's schedule gives it {given}: look at" in manifest["reason"]


def test_scores_may_travel_with_the_reply(run):
    orders = []

    def score(site, order):
        orders.append(order.round)
        return scores(site, order)

    def train(site, order):
        assert order.scored
        return assigned(site, order, scores=[0.1, 0.1, 0.8])

    greedy = {**SCHEDULE, "scoring": "with_reply", "weight_diversity": 0.0}
    _, manifest, history = run(scheduled, train, score, schedule=greedy)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert orders == [1, 1, 1]
    assert history["rounds"][1]["schedule"]["layers"] == {site: [2] for site in SITES}


def test_m_of_n_sites_take_part_in_a_round(run):
    _, manifest, history = run(scheduled, assigned, schedule={**SCHEDULE, "clients_per_round": 2}, rounds=4)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert [len(entry["sites"]) for entry in history["rounds"]] == [2, 2, 2, 2]
    assert len({tuple(entry["sites"]) for entry in history["rounds"]}) > 1


def test_a_site_that_joins_later_gets_no_adapter_in_its_first_round(run):
    received = {}

    def train(site, order):
        received[order.round, site] = bool(order.state)
        return reply(site, order)

    late, *others = SITES
    _, manifest, history = run(train=train, schedule={"joins": {late: 3}}, rounds=4)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert [late in entry["sites"] for entry in history["rounds"]] == [False, False, True, True]
    assert not received[3, late]
    assert received[4, late]
    assert received[3, others[0]]


def test_a_round_without_any_site_is_an_error(run):
    first, *later = SITES
    harness, _, _ = run(
        lambda site: None if site == first else introduction(site),
        schedule={"joins": dict.fromkeys(later, 2)},
        rounds=2,
        quorum=1,
    )
    assert "round 1 ended with too few valid replies (0, the quorum is 1)" in harness.panics[0]


def test_a_job_that_no_site_can_begin_ends_before_the_handshake(run):
    harness, manifest, _ = run(schedule={"joins": dict.fromkeys(SITES, 2)}, rounds=2)
    assert "schedule.joins lets every site join after round 1" in harness.panics[0]
    assert manifest["status"] == "failed"
    assert not hasattr(harness, "hello")


def test_the_largest_weights_that_are_accepted_leave_a_finite_model(run):
    def train(site, order):
        value = 1e6 if site == "chest" else 1.0
        return reply(site, order, state={key: torch.full(shape, value) for key, shape in SCHEMA.items()})

    method = {"aggregation": "pia", "pia": {"gamma": 0.1}, "robust": {"update_factor": 0}}
    harness, manifest, _ = run(train=train, method=method, rounds=1)
    assert manifest["status"] == "completed", manifest.get("reason")
    assert all(torch.isfinite(tensor).all() for tensor in harness.saved[-1].values())


def test_sites_that_are_away_are_no_relays():
    server = FederationController()
    federation = {"sites": SITES, "quorum": 1}
    server.prepare(ServerJob.from_sections({"federation": federation, "method": METHOD, "training": {"rounds": 1}}))
    paths = {SITES[0]: f"{SITES[1]}.{SITES[0]}", SITES[2]: f"other.{SITES[2]}"}
    there = [SimpleNamespace(name=name, get_fqcn=lambda name=name: paths.get(name, name)) for name in (*paths, "other")]
    engine = SimpleNamespace(
        get_cell=lambda: None,
        get_clients=lambda: there,
        get_client_from_name=lambda name: next((one for one in there if one.name == name), None),
    )
    server.fl_ctx, server.abort_signal = SimpleNamespace(get_engine=lambda: engine), None
    assert server.relays(seconds=1.0).relays_of([SITES[0], SITES[2]]) == {SITES[0]: "", SITES[2]: ""}


def test_only_usable_replies_count_towards_the_quorum(monkeypatch):
    """Two sites fail at once, the third answers after the grace would have been over: it must be waited for."""
    server = FederationController()
    federation = {"sites": SITES, "quorum": 1, "grace": 1}
    server.prepare(ServerJob.from_sections({"federation": federation, "method": METHOD, "training": {"rounds": 1}}))
    receivers, clock = {}, itertools.count()
    monkeypatch.setattr(
        server,
        "send_model",
        lambda task_name, data, targets, timeout, callback: receivers.update({targets[0]: callback}),
    )
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(clock)))
    server.abort_signal = SimpleNamespace(triggered=False)
    monkeypatch.setattr(server, "_cell_of", lambda site: site)
    engine = SimpleNamespace(get_client_from_name=lambda site: site)
    monkeypatch.setattr(server, "fl_ctx", SimpleNamespace(get_engine=lambda: engine))
    cancelled = []
    monkeypatch.setattr(server, "cancel_all_tasks", lambda: cancelled.append(True))
    order = TrainOrder(lineage="job-1", round=1, base=0, version=0, layers=None, scored=False, state={})

    def answer(site, **changes):
        model = to_model(reply(site, order, **changes))
        model.meta["client_name"] = site
        receivers[site](model)

    polls = itertools.count()

    def standing():
        poll = next(polls)
        if poll == 0:
            answer("slake", problem="out-of-memory", state={})
            answer("vqa-rad", problem="out-of-memory", state={})
        if poll == 9:
            assert not cancelled
            answer("chest")
        return 0 if poll > 9 else 1

    monkeypatch.setattr(server, "get_num_standing_tasks", standing)

    def read(reply, site):
        check_train_reply(reply, site=site, order=order, schema=SCHEMA, dtype="float32", samples=5)
        return reply

    accepted, refused = server.collect("train", dict.fromkeys(SITES, order), read, round=1, needed=1)
    assert set(accepted) == {"chest"}
    assert set(refused) == {"slake", "vqa-rad"}


@pytest.mark.parametrize("first", ["north", "south"])
def test_a_site_that_asks_again_while_another_works_gets_its_task_and_every_task_can_end(first):
    """FLARE listed what it had handed out twice, and its monitor of tasks and timeouts ended at the second."""
    flare, controller, context = WFCommServer(), FederationController(job="small"), FLContext()
    north, south = sites = [Client(name, f"{name}-1") for name in ("north", "south")]
    flare._engine, flare.controller = MagicMock(), MagicMock()
    flare._engine.validate_targets.return_value = (sites, [])
    flare._engine.new_context.return_value.__enter__.return_value = context
    controller.set_communicator(flare)
    tasks = [Task(name="train", data=Shareable(), timeout=100) for _ in sites]
    for task, site in zip(tasks, sites, strict=True):
        controller.broadcast(task, context, targets=[site.name], min_responses=1)
    asking = north if first == "north" else south
    (_, once, _), (_, again, _) = (flare.process_task_request(asking, context) for _ in range(2))
    assert once == again
    flare.process_submission(asking, "train", once, Shareable(), context)
    flare.check_tasks()
    assert [task.is_standing for task in tasks] == [site is not asking for site in sites]


def test_tensors_of_an_order_that_nobody_fetches_are_not_kept_for_the_whole_round():
    """FLARE keeps them for the task's timeout, up to a day, where the order has this header."""
    order = Shareable()
    order.set_header(ReservedHeaderKey.MSG_ROOT_TTL, 86400.0)
    context = FLContext()
    context.set_prop(FLContextKey.TASK_DATA, order, private=True, sticky=False)
    Harness().handle_event(EventType.AFTER_TASK_DATA_FILTER, context)
    assert not order.get_header(ReservedHeaderKey.MSG_ROOT_TTL)


@pytest.mark.parametrize("task", [TRAIN, SCORE])
def test_orders_of_large_adapters_share_their_tensors(monkeypatch, task):
    """Else FLARE copies the global adapter for each site."""
    made, large = Harness(), []
    monkeypatch.setattr(made, "_is_large", lambda replies: True)
    monkeypatch.setattr(made, "_replies", None, raising=False)
    monkeypatch.setattr(module.messages, "offloaded", lambda *_: nullcontext())
    monkeypatch.setattr(made, "_collect", lambda *_, **__: large.append(made._large) or ({}, {}))
    made.collect(task, {}, None, round=1, needed=0)
    assert large == [True]

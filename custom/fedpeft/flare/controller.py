# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The server's rounds: handshake, train, validate, integrate, record."""

from __future__ import annotations

import threading
import time
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.model_controller import ModelController

import fedpeft
from fedpeft.errors import FedpeftError
from fedpeft.federation import FederationSettings
from fedpeft.flare import handshake
from fedpeft.flare.aggregator import REPORT
from fedpeft.flare.distribution import Distribution
from fedpeft.flare.messages import (
    HELLO,
    SCORE,
    TRAIN,
    Hello,
    Introduction,
    ScoreOrder,
    ScoreReply,
    TrainOrder,
    TrainReply,
    check_reply,
    problem_of,
)
from fedpeft.flare.record import Record
from fedpeft.flare.run_folder import run_folder
from fedpeft.flare.tensors import register_tensors
from fedpeft.seeds import derive
from fedpeft.settings import build
from fedpeft.training.aggregation import State
from fedpeft.training.assignment import Assignment, ScheduleSettings, assign, belongs, check_scores, layers_of
from fedpeft.training.export import export_adapter
from fedpeft.training.settings import MethodSettings, TrainingSettings

ADAPTER = "adapter"
POLL_SECONDS = 0.1


class FederationController(ModelController):
    """Runs a job: a handshake in round 0, then `training.rounds` rounds, then the completion manifest.

    Settings are checked when the run starts, not in this constructor: FLARE's simulator hangs on a component that
    fails to construct, and ends with exit code 0.

    Args:
        job: the job's name, for tables and pictures.
        federation: see `FederationSettings`.
        method: see `MethodSettings`.
        training: see `TrainingSettings`.
        schedule: see `ScheduleSettings`.
        aggregator_id: id of a `ModelAggregator` component.
        persistor_id: id of the persistor component.
    """

    def __init__(
        self,
        job: str = "",
        federation: dict[str, Any] | None = None,
        method: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        schedule: dict[str, Any] | None = None,
        aggregator_id: str = "aggregator",
        persistor_id: str = "persistor",
    ) -> None:
        super().__init__(persistor_id=persistor_id, ignore_result_error=True, task_check_period=0.1)
        register_tensors()
        self._job = job
        self._sections = {"federation": federation, "method": method, "training": training, "schedule": schedule}
        self._aggregator_id = aggregator_id
        self._lock = threading.Lock()

    def run(self) -> None:
        """The whole job; whatever ends it early is recorded in the manifest and told to FLARE as a panic."""
        record = Record(run_folder(self.fl_ctx), job=self._job)
        try:
            self._federation = build(FederationSettings, self._sections["federation"], section="federation")
            self._method = build(MethodSettings, self._sections["method"], section="method")
            self._training = build(TrainingSettings, self._sections["training"], section="training")
            self._schedule = build(ScheduleSettings, self._sections["schedule"], section="schedule")
            threading.Thread(target=_import_peft, daemon=True).start()
            introductions = self._handshake(record)
            state = self._rounds(record, introductions)
            if state and self._method.trains == "adapters":
                family = next(iter(introductions.values())).family
                export_adapter(record.folder / ADAPTER, state, self._method, family=family)
            lines = record.complete()
        except FedpeftError as error:
            record.fail(str(error))
            self.panic(str(error))
            return
        except Exception as error:
            record.fail(f"{type(error).__name__} on the server: {error}; its log has the traceback.")
            raise
        for line in lines:
            self.info(line)

    def _handshake(self, record: Record) -> dict[str, Introduction]:
        """Ask every site what it brings; the sites that can take part, or an error that names who cannot and why."""
        federation = self._federation
        wanted = federation.sites[0] if self._schedule.active and self._method.exchanges else None
        hellos = {site: Hello(version=fedpeft.__version__, initial=site == wanted) for site in federation.sites}
        orders = {site: hello.to_model(round=0) for site, hello in hellos.items()}
        replies = self._ask(HELLO, orders, timeout=federation.hello_timeout, needed=len(orders))
        introductions, problems = handshake.read(replies, sites=federation.sites, timeout=federation.hello_timeout)
        handshake.check_agreement(introductions, version=fedpeft.__version__, method=self._method)
        if len(introductions) < federation.needed:
            raise FedpeftError(_shortage("the handshake", len(introductions), federation.needed, problems))
        if wanted in problems:
            raise FedpeftError(f"no site could say what the layers start from: {problems[wanted]}")
        for site, problem in problems.items():
            self.warning(f"site {site} does not take part: {problem}")
        record.begin(self._method, self._training, introductions, problems)
        return introductions

    def _rounds(self, record: Record, introductions: dict[str, Introduction]) -> State:
        """All rounds; the final global adapter, empty where nothing is exchanged."""
        aggregator = self.get_component(self._aggregator_id)
        if aggregator is None:
            raise FedpeftError(f"the job has no component {self._aggregator_id!r}: regenerate it with `fedpeft jobs`.")
        seed, rounds, schedule = self._training.seed, self._training.rounds, self._schedule
        first = introductions.get(self._federation.sites[0])
        current = Distribution(first.state if first else {})
        if current.state:
            aggregator.start_from(current.state)
        scores: dict[str, list[float]] = {}
        for number in range(1, rounds + 1):
            began = time.monotonic()
            sites = schedule.participants(number, list(introductions), seed=seed)
            needed = min(self._federation.needed, len(sites))
            assignment, rejected = None, {}
            if schedule.active:
                due = [site for site in sites if schedule.scores_in(number) or site not in scores]
                rejected = self._score(number, due, introductions, current, scores)
                sites = [site for site in sites if site not in rejected]
                if len(sites) < needed:
                    raise FedpeftError(_shortage(f"scoring in round {number}", len(sites), needed, rejected))
                assignment = assign(
                    {site: scores[site] for site in sites},
                    {site: introductions[site].budget for site in sites},
                    layers_of(introductions[sites[0]].schema),
                    schedule,
                    seed=derive(seed, "schedule", number),
                )
            orders = {site: self._order(number, site, current, assignment) for site in sites}
            replies = self._ask(
                TRAIN,
                {site: order.to_model(round=number, rounds=rounds) for site, order in orders.items()},
                timeout=self._federation.round_timeout,
                needed=needed,
            )
            accepted, refused = self._validate(replies, orders, introductions)
            rejected |= refused
            current.confirm({site: site in accepted for site in orders})
            if len(accepted) < needed:
                raise FedpeftError(_shortage(f"round {number}", len(accepted), needed, rejected))
            scores |= {site: reply.scores for site, reply in accepted.items() if reply.scores}
            report: dict[str, Any] = {}
            if self._method.exchanges:
                state, report = self._integrate(aggregator, accepted)
                self.save_model(FLModel(params=state))
                current.update(state)
            record.add_round(number, accepted, rejected, report, assignment, seconds=time.monotonic() - began)
            for site, reason in rejected.items():
                self.warning(f"round {number}: {reason} (site {site} is left out of this round)")
            self.info(record.progress(number, rounds))
        return current.state if self._method.exchanges else {}

    def _order(self, number: int, site: str, current: Distribution, assignment: Assignment | None) -> TrainOrder:
        return TrainOrder(
            round=number,
            base=current.base(site) if assignment else 0,
            version=current.version if assignment else 0,
            layers=assignment.layers[site] if assignment else None,
            scored=self._schedule.active and self._schedule.scoring == "with_reply",
            state=current.payload(site) if assignment else current.state,
        )

    def _score(
        self,
        number: int,
        sites: list[str],
        introductions: dict[str, Introduction],
        current: Distribution,
        scores: dict[str, list[float]],
    ) -> dict[str, str]:
        """Fill in fresh scores; the reasons why some sites have none."""
        orders = {}
        for site in sites:
            payload = current.payload(site)
            order = ScoreOrder(round=number, base=current.base(site), version=current.version, state=payload)
            orders[site] = order.to_model(round=number, rounds=self._training.rounds)
        replies = self._ask(SCORE, orders, timeout=self._federation.round_timeout, needed=len(sites))
        problems = {}
        for site in sites:
            try:
                if site not in replies:
                    raise FedpeftError(f"site {site} sent no scores in round {number}: look at its log.")
                reply = ScoreReply.from_model(replies[site], sender=f"site {site}")
                if reply.problem:
                    raise FedpeftError(f"site {site} could not score round {number}: {reply.problem}")
                check_scores(reply.scores, len(layers_of(introductions[site].schema)), site)
                scores[site] = reply.scores
            except FedpeftError as error:
                problems[site] = str(error)
        current.confirm({site: site not in problems for site in sites})
        return problems

    def _ask(self, task: str, orders: dict[str, FLModel], *, timeout: int, needed: int) -> dict[str, FLModel]:
        """Send each site its own payload; replies once all are there, or enough and the grace is over."""
        replies: dict[str, FLModel] = {}

        def receive(model: FLModel) -> None:
            with self._lock:
                replies[model.meta["client_name"]] = model

        for site, model in orders.items():
            self.send_model(task_name=task, data=model, targets=[site], timeout=timeout, callback=receive)
        enough_since = None
        while self.get_num_standing_tasks() and not self.abort_signal.triggered:
            time.sleep(POLL_SECONDS)
            with self._lock:
                usable = sum(not problem_of(model) for model in replies.values())
            if usable >= needed:
                enough_since = enough_since or time.monotonic()
                if time.monotonic() - enough_since > self._federation.grace:
                    self.cancel_all_tasks()
        if self.abort_signal.triggered:
            raise FedpeftError(f"the job was aborted while the sites worked on {task!r}.")
        with self._lock:
            return dict(replies)

    def _validate(
        self, replies: dict[str, FLModel], orders: dict[str, TrainOrder], introductions: dict[str, Introduction]
    ) -> tuple[dict[str, TrainReply], dict[str, str]]:
        """Replies that are what was announced and assigned, and the reasons why others are not."""
        accepted, rejected = {}, {}
        for site, order in orders.items():
            try:
                if site not in replies:
                    raise FedpeftError(
                        f"site {site} sent no usable reply in round {order.round}: look at its log, or raise "
                        f"federation.round_timeout ({self._federation.round_timeout} s)."
                    )
                reply = TrainReply.from_model(replies[site], sender=f"site {site}")
                announced = introductions[site].schema if self._method.exchanges else {}
                check_reply(
                    reply,
                    site=site,
                    round=order.round,
                    schema={key: shape for key, shape in announced.items() if belongs(key, order.layers)},
                    samples=introductions[site].samples["train"],
                )
                check_scores(reply.scores, len(layers_of(announced)) if order.scored else 0, site)
                accepted[site] = reply
            except FedpeftError as error:
                rejected[site] = str(error)
        return accepted, rejected

    def _integrate(self, aggregator: Any, accepted: dict[str, TrainReply]) -> tuple[State, dict[str, Any]]:
        aggregator.reset_stats()
        for site, reply in accepted.items():
            aggregator.accept_model(FLModel(params=reply.state, meta={"client_name": site, "samples": reply.samples}))
        merged = aggregator.aggregate_model()
        return merged.params, merged.meta[REPORT]


def _shortage(when: str, valid: int, needed: int, problems: dict[str, str]) -> str:
    reasons = " ".join(problems[site].rstrip(".") + "." for site in sorted(problems))
    return f"{when} ended with too few valid replies ({valid}, the quorum is {needed}): {reasons}"


def _import_peft() -> None:
    """PEFT costs seconds and is needed only at the end: load it while the sites work."""
    import peft  # noqa: F401

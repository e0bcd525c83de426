# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Run a whole federation in one process, without FLARE, with the same results; for notebooks, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

import fedpeft
from fedpeft.core.errors import FedpeftError
from fedpeft.core.seeds import draws_restored
from fedpeft.core.settings import orders_of
from fedpeft.core.states import copied, dtype_of
from fedpeft.job.settings import CommonSettings, check_attackers, check_drawn, check_layers, check_scores
from fedpeft.protocol.secure_sum import encode_unmasked
from fedpeft.protocol.types import METRICS, SCORE, Introduction, Order, ScoreOrder, ScoreReply, TrainOrder, TrainReply
from fedpeft.server import first_adapter
from fedpeft.server.aggregation import Aggregator, State
from fedpeft.server.handshake import agree
from fedpeft.server.planner import Assignment, FiguresBySite, best_before_end
from fedpeft.server.rounds import Read, Rounds
from fedpeft.site import site_state
from fedpeft.site.learner import Learner, Update
from fedpeft.site.orders import completed

Salts = Callable[[str, int, State], str]


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One round: updates by site, global adapter, alignment report, trained layers, and reasons for refused updates.

    Its adapters are copies: changing them has no effect on the next round.
    """

    round: int
    updates: dict[str, Update]
    state: State
    report: dict[str, Any]
    assignment: Assignment | None = None
    refused: dict[str, str] = field(default_factory=dict)


def federate(
    learners: Mapping[str, Learner], salts: Salts | None = None, *, quorum: int = 1, tolerant: bool = False
) -> Iterator[RoundResult]:
    """Run all rounds of a job, one site after the other; state of an earlier run in the sites' folders is removed.

    Args:
        learners: by site; all with the same method, training and schedule settings.
        salts: function from a site's name, a round and the global adapter to an extra part of its training seeds, as in
            secure sums of a consortium (`fedpeft.protocol.signed_keys`); None: only the job's seed.
        quorum: accepted updates that a round needs, or all updates if the round has fewer.
        tolerant: a site that cannot score or train, or whose reply a server would refuse, misses the round, as in a
            job, if the quorum allows it; else it ends the federation.

    Raises:
        FedpeftError: learners have other settings than the first or adapters of another kind, the check of updates
            leaves fewer, or settings need every site in every round.
    """
    _check_alike(learners)
    first = next(iter(learners.values()))
    job = CommonSettings(first.method, first.training, first.schedule)
    check_drawn(*job, learners)  # in a notebook there is no job that was checked before
    check_attackers(job.method, job.schedule, learners)
    job.method.check_first_values(scheduled=job.schedule.active)
    check_layers(job.method, job.schedule)
    check_scores(job.method, job.schedule)
    if job.method.secure_sum and (job.schedule.active or job.schedule.clients_per_round or job.schedule.joins):
        raise FedpeftError("method.secure_sum adds up what all sites send in every round: schedule no layers or sites.")
    for learner in learners.values():
        site_state.clear(learner.folder)
    sites = _LocalSites(learners, salts, tolerant=tolerant)
    rounds = Rounds(job, _introductions(learners), sites, Aggregator(job.method), lineage="", needed=quorum)
    measured: list[FiguresBySite] = []
    for one in rounds:
        updates = sites.updates
        measured.append({site: dict(update.metrics) for site, update in updates.items() if site not in one.rejected})
        given = {site: replace(update, state=copied(update.state)) for site, update in updates.items()}
        yield RoundResult(one.number, given, copied(one.state), one.report, one.assignment, dict(one.rejected))
        if best_before_end(measured, job.training.patience):
            return


@contextmanager
def _threads_restored() -> Iterator[None]:
    """Leave torch's number of threads as it was: each learner sets its own."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


MACHINE_SETTINGS = ("device", "threads")  # of `training`, which each site may set for itself


def _check_alike(learners: Mapping[str, Learner]) -> None:
    """Refuse learners of unlike jobs: the first one's settings would decide, and so the order of the mapping."""
    if not learners:
        raise FedpeftError("there are no learners, so there is nothing to federate: give at least one site's.")
    first, *others = learners
    for section in CommonSettings._fields:
        expected = getattr(learners[first], section)
        for site in others:
            own = getattr(learners[site], section)
            for name in (setting.name for setting in fields(expected) if setting.name not in MACHINE_SETTINGS):
                value, common = getattr(own, name), getattr(expected, name)
                if value != common or orders_of({name: value}) != orders_of({name: common}):
                    raise FedpeftError(
                        f"{section}.{name} is {value!r:.100} at {site} and {common!r:.100} at {first}: all learners of "
                        f"a federation need the same settings, make them from the same sections.",
                        setting=f"{section}.{name}",
                    )


def _introductions(learners: Mapping[str, Learner]) -> dict[str, Introduction]:
    """Return what the sites announce; if the method needs it, one of them with the adapter that all start from."""
    first = next(iter(learners.values()))
    starts = {site: learner.first_state() for site, learner in learners.items()}
    schemas = {site: {key: list(tensor.shape) for key, tensor in state.items()} for site, state in starts.items()}
    sender = ""
    if first_adapter.is_needed(first.method, first.schedule):
        announced = {site: (schemas[site], learner.start_digest()) for site, learner in learners.items()}
        sender = first_adapter.choose_sender(announced, first.method, joins=first.schedule.joins).site
    introductions = {
        site: Introduction(
            version=fedpeft.__version__,
            schema=schemas[site],
            samples=learner.announced,
            classes=learner.announced_classes,
            budget=learner.layer_budget(),
            width=learner.backbone.hidden_size,
            family=learner.backbone.family,
            slots=learner.trainable.slots(),
            dtype=dtype_of(starts[site]),
            state=starts[site] if site == sender else {},
        )
        for site, learner in learners.items()
    }
    unmasked = replace(first.method, secure_sum=False)  # nobody offers a key in one process
    _, problems = agree(introductions, version=fedpeft.__version__, method=unmasked)
    if problems:
        raise FedpeftError("; ".join(problems.values()))
    return introductions


class _LocalSites:
    """Learners in this process."""

    def __init__(self, learners: Mapping[str, Learner], salts: Salts | None, *, tolerant: bool) -> None:
        self._learners, self._salts, self._tolerant = learners, salts, tolerant
        self._held: dict[str, State] = {}  # the global adapter by site, if only its changes are sent
        self.updates: dict[str, Update] = {}  # of the last round

    def collect(
        self, task: str, orders: Mapping[str, Order], read: Read, *, round: int, needed: int
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Carry out the orders, one site after the other, and check replies without masks as a server does."""
        with draws_restored(), _threads_restored():
            return self._collect(self._score if task == SCORE else self._train, task, orders, read)

    def _collect(
        self, carry_out: Callable[[str, Any], Any], task: str, orders: Mapping[str, Order], read: Read
    ) -> tuple[dict[str, Any], dict[str, str]]:
        self.updates = {} if task != SCORE else self.updates
        replies, problems = {}, {}
        for site, order in orders.items():
            try:
                reply = self._carried_out(carry_out, site, order)
                summed = self._learners[site].method.secure_sum and task != SCORE
                # nobody offers a key here, which a server asks for with a masked adapter
                replies[site] = self._encoded(site, reply, together=len(orders)) if summed else read(reply, site)
            except FedpeftError as error:
                if not self._tolerant:
                    raise
                named = str(error).startswith((f"site {site} ", f"site {site}: "))
                problems[site] = str(error) if named else f"site {site}: {error}"
        return replies, problems

    def _carried_out(self, carry_out: Callable[[str, Any], Any], site: str, order: Order) -> Any:
        """Carry out an order; of a tolerated site any error costs it the round, as in a process of its own."""
        try:
            return carry_out(site, order)
        except Exception as error:
            if isinstance(error, FedpeftError) or not self._tolerant:
                raise
            raise FedpeftError(f"site {site}: {type(error).__name__}: {error}") from error

    def _received(self, site: str, order: ScoreOrder | TrainOrder) -> State:
        stacked = self._learners[site].method.rule.stacks
        state = completed(self._held[site], order.state, stacked=stacked) if order.base else order.state
        if order.version:
            self._held[site] = state
        return state

    def _score(self, site: str, order: Any) -> ScoreReply:
        torch.set_num_threads(self._learners[site].training.threads)  # another learner may have set its own
        scores = self._learners[site].score_layers(order.round, self._received(site, order))
        return ScoreReply(round=order.round, scores=scores, seconds=0.0, problem="")

    def _encoded(self, site: str, reply: TrainReply, *, together: int) -> TrainReply:
        method = self._learners[site].method
        return replace(reply, state=encode_unmasked(reply.state, reply.samples, method, sites=together))

    def _train(self, site: str, order: Any) -> TrainReply:
        learner, received = self._learners[site], self._received(site, order)
        torch.set_num_threads(learner.training.threads)
        learner.salt = self._salts(site, order.round, received) if self._salts else ""
        update = learner.train_round(order.round, received, order.layers, part=order.part)
        self.updates[site] = update
        scores = learner.score_trained(order.round) if order.scored else []
        return TrainReply(
            round=order.round,
            samples=update.samples,
            metrics={name: update.metrics.get(name) for name in METRICS},
            scores=scores,
            seconds=0.0,
            problem="",
            state=update.state,
        )

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The rounds of a job at its server: score, schedule, train, check the updates, integrate.

FLARE's controller, the pool of processes and `federate` all run them; they differ in `Sites`, which takes orders to the
sites and brings back replies, and in the `Integrator` of these. Where layers are scheduled, a site is sent only
the tensors of the global adapter that changed since it last received it; where factors are stacked, those that were
added; else the whole adapter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from fedpeft.alignment.factors import RANK_AXIS, factor_places
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import layers_of
from fedpeft.core.states import State, Store, in_memory, select_keys
from fedpeft.job.settings import CommonSettings, ServerJob
from fedpeft.protocol.reply_contract import check_score_reply, check_train_reply
from fedpeft.protocol.types import (
    SCORE,
    TRAIN,
    Introduction,
    Order,
    Reply,
    ScoreOrder,
    ScoreReply,
    TrainOrder,
    TrainReply,
)
from fedpeft.server.aggregation import check_global, parts_of
from fedpeft.server.checkpoint import Checkpoint
from fedpeft.server.optimizers import ServerSteps
from fedpeft.server.planner import Assignment, RoundPlanner
from fedpeft.server.relay_sums import RelaySums
from fedpeft.server.update_check import UpdateCheck


class DeltaBroadcast:
    """The global adapter with a version number, 1 for the first one, and the version that each site has."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.version = 1
        self._changed = dict.fromkeys(state, 1)
        self._held: dict[str, int] = {}

    def update(self, state: State) -> None:
        """Set a new global adapter; unchanged tensors keep their version."""
        self.version += 1
        for key, tensor in state.items():
            if key not in self.state or not torch.equal(tensor, self.state[key]):
                self._changed[key] = self.version
        self.state = state

    def base(self, site: str) -> int:
        """Return the version that a site has; 0: none."""
        return self._held.get(site, 0)

    def payload(self, site: str) -> State:
        """Return the tensors that changed since the version that a site has."""
        return {key: tensor for key, tensor in self.state.items() if self._changed[key] > self.base(site)}

    def confirm(self, answered: Mapping[str, bool]) -> None:
        """Record which sites have the current version (True) and which need all tensors again (False)."""
        for site, holds in answered.items():
            self._held[site] = self.version if holds else 0


class StackedBroadcast(DeltaBroadcast):
    """The stacked factors of all rounds, and how many of them each site holds."""

    def __init__(self, state: State, store: Store = in_memory) -> None:
        super().__init__(state)
        self._ranks, self._store = {self.version: _ranks(state)}, store
        self._payloads: dict[int, State] = {}

    def update(self, state: State) -> None:
        """Set a new global adapter; if it did more than grow, every site needs it whole."""
        grown = all(_only_grows(state, self.state, names) for names in factor_places(self.state).values())
        super().update(state)
        self._payloads.clear()
        self._ranks[self.version] = _ranks(state)
        if not grown:
            self._held.clear()

    def payload(self, site: str) -> State:
        """Return the factors added since a site's version, and other tensors that changed; shared by equal sites."""
        base = self.base(site)
        if base not in self._payloads:
            self._payloads[base] = self._store(self._added_factors(base, super().payload(site)))
        return dict(self._payloads[base])

    def _added_factors(self, base: int, payload: State) -> State:
        held = self._ranks.get(base, {})
        for place, names in factor_places(payload).items():
            for name, axis in RANK_AXIS.items():
                tensor, start = payload[names[name]], held.get(place, 0)
                payload[names[name]] = tensor.narrow(axis, start, tensor.shape[axis] - start).contiguous()
        return payload


def _ranks(state: State) -> dict[str, int]:
    return {place: state[names["A"]].shape[0] for place, names in factor_places(state).items()}


def _only_grows(state: State, before: State, names: dict[str, str]) -> bool:
    """Return whether a place still begins with its former factors."""
    for name, axis in RANK_AXIS.items():
        old, new = before[names[name]], state[names[name]]
        if new.shape[axis] < old.shape[axis] or not torch.equal(new.narrow(axis, 0, old.shape[axis]), old):
            return False
    return True


R = TypeVar("R", bound=Reply)
Read = Callable[[R, str], R]


class Sites(Protocol):
    """The sites of a job, as its server reaches them."""

    def collect(
        self, task: str, orders: Mapping[str, Order], read: Read[R], *, round: int, needed: int
    ) -> tuple[dict[str, R], dict[str, str]]:
        """Send each site its order and wait for the replies, or for as many accepted ones as are needed.

        Args:
            task: one of `fedpeft.protocol.types.TASKS`.
            orders: by site.
            read: checks a site's reply, or raises a FedpeftError that names the site.
            round: of the orders; 0: the handshake.
            needed: number of accepted replies that is enough.

        Returns:
            Checked replies by site, in the order of `orders`; and by site why there is none.
        """


class Integrator(Protocol):
    """Aggregates the replies of a round, and stores the global adapter that the rounds make of it."""

    def start_from(self, state: State) -> None:
        """Set the global adapter before the first round."""

    def stored(self, state: Mapping[str, Tensor]) -> State:
        """Return tensors as the server keeps them, in memory or on its disk."""

    def integrate(self, replies: Mapping[str, TrainReply]) -> tuple[State, dict[str, Any]]:
        """Return the aggregated adapter and the report of its alignment."""

    def keep(self, state: State) -> None:
        """Store the global adapter of a round, which the next one continues from."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """A finished round: replies by site, reasons for missing ones, the global adapter (empty if none is exchanged), the
    report of its alignment, the layers that each site trained, and its seconds."""

    number: int
    accepted: dict[str, TrainReply]
    rejected: dict[str, str]
    state: State
    report: dict[str, Any]
    assignment: Assignment | None
    seconds: float


class Rounds:
    """Runs the remaining rounds of a job; iterate over it once.

    Args:
        job: its settings.
        introductions: of the sites that take part.
        sites: takes orders to them.
        integrator: makes the global adapter of their replies.
        lineage: names the state that the sites keep of this job.
        needed: accepted replies that a round needs, or all sites of a round if these are fewer.
        before: the checkpoint to continue from.
        sums: adds up the adapters, partly at relays; None: the integrator does it.

    Raises:
        FedpeftError: while iterating: too few sites are left, or the new global adapter is not finite.
    """

    def __init__(
        self,
        job: CommonSettings | ServerJob,
        introductions: Mapping[str, Introduction],
        sites: Sites,
        integrator: Integrator,
        *,
        lineage: str,
        needed: int,
        before: Checkpoint | None = None,
        sums: RelaySums | None = None,
    ) -> None:
        self._sums = sums
        self._method, self._training, self._schedule = job.method, job.training, job.schedule
        self._introductions, self._sites, self._integrator = introductions, sites, integrator
        self._lineage, self._needed = lineage, needed
        first = next((i for i in introductions.values() if i.state), None)
        start = before.state if before else first.state if first else {}
        stacks = self._method.rule.stacks
        self._global = StackedBroadcast(start, integrator.stored) if stacks else DeltaBroadcast(start)
        integrator.start_from(self._global.state)
        self.planner = RoundPlanner(
            self._schedule,
            budgets={site: introduction.budget for site, introduction in introductions.items()},
            layers=layers_of(next(iter(introductions.values())).schema),
            seed=self._training.seed,
            scores=before.scores if before else None,
        )
        self._sum_keys = {site: i.sum_key for site, i in introductions.items()} if self._method.secure_sum else {}
        last = before.history["rounds"][-1]["sites"] if before else {}  # a site of it may be away now
        self._averaged = {site: entry["samples"] for site, entry in last.items()}
        past: dict[str, Any] = {"own": before.own, "median": before.median, "excess": before.excess} if before else {}
        self.check = UpdateCheck(self._method, self._training, self._schedule, store=integrator.stored, **past)
        self.steps = ServerSteps(self._method, before.moments if before else None)
        self._first = before.round + 1 if before else 1

    @property
    def state(self) -> State:
        """The global adapter; empty if nothing is exchanged."""
        return self._global.state if self._method.exchanges else {}

    def __iter__(self) -> Iterator[Round]:
        for number in range(self._first, self._training.rounds + 1):
            yield self._run(number)

    def _run(self, number: int) -> Round:
        began = time.monotonic()
        sites, rejected = self.planner.participants(number), {}
        needed = max(1, min(self._needed, len(sites)))
        if self._schedule.scored:
            due = self.planner.due(number, sites)
            rejected = self._score(number, due, needed=max(1, needed - len(sites) + len(due)) if due else 0)
            sites = [site for site in sites if site not in rejected]
            check_enough(f"scoring in round {number}", sites, needed, rejected)
        assignment = self.planner.assignment(number, sites)
        accepted, refused = self._train(number, sites, assignment, needed=needed)
        rejected |= refused
        check_enough(f"round {number}", accepted, needed, rejected)
        self.planner.scores |= {site: reply.scores for site, reply in accepted.items() if reply.scores}
        if self._sum_keys:
            self._sum_keys = {site: reply.sum_key for site, reply in accepted.items()}
        report: dict[str, Any] = {}
        if self._method.exchanges:
            if self._sums:
                state, trained = self._sums.mean(accepted, self._global.state), set(self._global.state)
            else:
                state, report = self._integrator.integrate(accepted)
                self.check.accept({site: reply.state for site, reply in accepted.items()})
                trained = {key for reply in accepted.values() for key in reply.state}
            state = self.steps.step(self._global.state, state, trained, store=self._integrator.stored)
            check_global(state)
            self._integrator.keep(state)
            self._global.update(state)
        return Round(
            number=number,
            accepted=accepted,
            rejected=rejected,
            state=self.state,
            report=report,
            assignment=assignment,
            seconds=time.monotonic() - began,
        )

    def _score(self, number: int, due: Sequence[str], *, needed: int) -> dict[str, str]:
        """Request new layer scores; return by site why there are none."""
        orders = {
            site: ScoreOrder(
                lineage=self._lineage,
                round=number,
                base=self._global.base(site),
                version=self._global.version,
                state=self._global.payload(site),
            )
            for site in due
        }
        read = partial(self._read_scores, number)
        replies, problems = self._sites.collect(SCORE, orders, read, round=number, needed=needed)
        self.planner.scores |= {site: reply.scores for site, reply in replies.items()}
        self._global.confirm({site: site in replies for site in due})
        return problems

    def _read_scores(self, number: int, reply: ScoreReply, site: str) -> ScoreReply:
        check_score_reply(reply, site=site, round=number, schema=self._introductions[site].schema)
        return reply

    def _train(
        self, number: int, sites: Sequence[str], assignment: Assignment | None, *, needed: int
    ) -> tuple[dict[str, TrainReply], dict[str, str]]:
        """Let the sites train; return the replies for the global adapter, and by site why a reply is not used."""
        parts = parts_of(self._averaged, self._method)
        orders = {site: self._order(number, site, assignment, part=parts.get(site, 0.0)) for site in sites}
        refused: dict[str, str] = {}
        if self._sums:
            places, refused = self._sums.begin(number, sites, self._global.state)
            check_enough(f"round {number}", places, needed, refused)
            orders = {
                site: replace(orders[site], relay=place, state={} if place else orders[site].state)
                for site, place in places.items()
            }
        read = partial(self._read_training, orders)
        replies, others = self._sites.collect(TRAIN, orders, read, round=number, needed=needed)
        refused |= others
        sent = {site: reply.state for site, reply in replies.items() if not orders[site].relay}
        measured: dict[str, float] = {}
        if self._sums:
            measured, others = self._sums.measured(site for site in replies if orders[site].relay)
            refused |= others
        announced = {site: self._introductions[site].samples["train"] for site in (*sent, *measured)}
        refused |= self.check.outlying(sent, self._global.state, announced, number, measured)
        if self._sums:
            refused |= self._sums.add_up(site for site in measured if site not in refused)
        accepted = {site: reply for site, reply in replies.items() if site not in refused}
        self._averaged = {site: reply.samples for site, reply in accepted.items()}
        self._global.confirm({site: site in accepted for site in orders})
        return accepted, refused

    def _order(self, number: int, site: str, assignment: Assignment | None, *, part: float) -> TrainOrder:
        current, changes = self._global, assignment or self._method.rule.stacks
        state = current.payload(site) if changes else current.state
        return TrainOrder(
            lineage=self._lineage,
            round=number,
            base=current.base(site) if changes else 0,
            version=current.version if changes else 0,
            layers=assignment.layers[site] if assignment else None,
            scored=self._schedule.scored and self._schedule.scoring == "with_reply",
            part=part,
            sum_keys=self._sum_keys,
            state={} if self.planner.begins(number, site) else select_keys(state, self._introductions[site].schema),
        )

    def _read_training(self, orders: Mapping[str, TrainOrder], reply: TrainReply, site: str) -> TrainReply:
        introduction = self._introductions[site]
        check_train_reply(
            reply,
            site=site,
            order=orders[site],
            schema=introduction.schema if self._method.exchanges else {},
            at_relay=bool(orders[site].relay),
            dtype=introduction.dtype,
            samples=introduction.samples["train"],
        )
        if self._sums and not orders[site].relay:
            self._sums.check(site, reply.state)
        return reply


def check_enough(when: str, valid: Sequence[str] | Mapping[str, Any], needed: int, problems: Mapping[str, str]) -> None:
    """Raise an error if fewer sites than the quorum are left."""
    if len(valid) < needed:
        reasons = " ".join(problems[site].rstrip(".") + "." for site in sorted(problems))
        raise FedpeftError(f"{when} ended with too few valid replies ({len(valid)}, the quorum is {needed}): {reasons}")

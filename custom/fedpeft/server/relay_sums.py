# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The sum of a round's adapters, made in parts at the relays of the sites.

    before the round   SumOrder     to each relay: which sites, with which weights, from which global adapter
    in the round       Upload       to a site, from its relay: the global adapter, which its order does not have
                       Upload       of a site, to its relay: its adapter; all else of its reply goes to the server
    then               Measured     each relay says how far each of its sites moved; the server compares all sites
                       PartialSum   each relay adds up the adapters of the sites that the server names

The server makes the same update check as in other jobs: it needs lengths, not adapters. Adapters are added up as in a
secure sum, as integers modulo 2^64 (`fedpeft.protocol.secure_sum.encode`). Their sum is exact, so it does not depend on
which site is behind which relay, and a relay adds masked adapters like others.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import numpy as np
import torch

from fedpeft.alignment.averaging import cap_share
from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import State, first_misfit
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.reply_contract import MAX_FIGURE, check_tensors
from fedpeft.protocol.secure_sum import (
    Numbers,
    check_cancelled,
    check_fits,
    decode,
    encode,
    from_wire,
    to_wire,
    weight_of,
)
from fedpeft.protocol.types import Introduction, Measured, PartialSum, SumOrder, SumQuery, TrainReply, Upload
from fedpeft.server.update_check import update_length

if TYPE_CHECKING:
    from fedpeft.alignment.settings import RobustSettings

MAX_AT_ONCE = 4  # requests to relays at the same time: the server holds the sum of each until it is added
ROUNDING = 1e-6
MAX_REASON = 290  # characters: a message holds no longer text


class GroupSum:
    """The adapters of a round at a relay, for several threads; it refuses an order with impossible numbers."""

    def __init__(self, order: SumOrder) -> None:
        if not order.weights or min(order.weights.values()) < 1 or order.together < len(order.weights):
            raise FedpeftError(
                f"the server's order to add up {len(order.weights)} of {order.together} sites is invalid: install the "
                f"same fedpeft version at the server and its relays."
            )
        self._order, self.round = order, order.round
        self._schema = {key: list(tensor.shape) for key, tensor in order.state.items()}
        self._lock = threading.Lock()
        self._states: dict[str, State] = {}
        self._lengths: dict[str, float] = {}
        self._refused: dict[str, str] = {}
        self._damaged = ""  # why there is no sum
        self._closed = False  # the server has been told which adapters there are
        self._given = False  # and has the sum
        self._totals: Numbers = {}  # of all that came so far: few are taken out again at the end

    def start(self, site: str) -> Upload:
        """Return the global adapter that a site trains; refuse a site that takes no part in the round."""
        if site not in self._order.weights:
            raise FedpeftError(f"site {site} takes no part in round {self._order.round}.")
        return Upload(round=self._order.round, state=self._order.state)

    def take(self, site: str, upload: Upload) -> None:
        """Check a site's adapter, keep it and add it; only the first counts. The server is told why one is refused."""
        order, late = self._order, f"the adapter of site {site} came too late."
        if upload.round != order.round:  # a late one says nothing about this round
            raise FedpeftError(f"site {site} sent its adapter of round {upload.round} in round {order.round}.")
        with self._lock:
            if site not in order.weights or site in self._states or site in self._refused:
                raise FedpeftError(f"site {site} has no adapter to send in round {order.round}.")
            self._refused[site] = f"the adapter of site {site} was still on its way to the relay."
        try:
            check_tensors(upload.state, site=site, schema=self._schema, dtype=order.dtype, masked=order.masked)
            if not order.masked:
                check_fits(upload.state, weight=order.weights[site], sites=order.together)
            length = 0.0 if order.masked else update_length(upload.state, order.state)
        except FedpeftError as error:
            with self._lock:
                self._refused[site] = str(error)[:MAX_REASON]
            raise
        with self._lock:
            if self._closed:
                self._refused[site] = late
                raise FedpeftError(late)
            self._states[site] = upload.state
            try:
                self._add(site)
            finally:
                self._refused[site] = self._damaged
            self._lengths[site] = length
            del self._refused[site]

    def measured(self) -> Measured:
        """Return how far each site moved, and why others are not used; later adapters are not used either."""
        with self._lock:
            self._closed = True
            lengths, refused = dict(sorted(self._lengths.items())), dict(self._refused)
            for site in self._order.weights.keys() - lengths.keys():
                self._refused.setdefault(site, f"the adapter of site {site} came too late.")
        return Measured(round=self._order.round, lengths=lengths, refused=refused)

    def total(self, sites: Sequence[str]) -> PartialSum:
        """Return the sum of these sites' weighted adapters; none may be missing."""
        with self._lock:
            self._closed = True
            if self._given:
                raise FedpeftError(f"the sum of round {self._order.round} was given already: it is not counted twice.")
            if not sites or len(set(sites)) != len(sites) or not self._lengths.keys() >= set(sites):
                raise FedpeftError(
                    f"a sum of {len(sites)} sites is asked for, {len(self._lengths)} have sent an adapter."
                )
            for site in self._states.keys() - set(sites):
                self._add(site, out=True)
                del self._states[site]
            if self._damaged:
                raise FedpeftError(self._damaged)
            self._given = True
            totals, self._totals = self._totals, {}  # they are read while they are sent
            state = {key: to_wire(numbers) for key, numbers in totals.items()}
        return PartialSum(round=self._order.round, sites=list(sites), state=state)

    def _add(self, site: str, *, out: bool = False) -> None:
        """Add a site's adapter or take it out; after an error half-way the sum cannot be used any more."""
        if self._damaged:
            raise FedpeftError(self._damaged)
        order = self._order
        self._damaged = "the relay could not finish a sum, its log says why: no sum of this round can be used."
        add(self._totals, self._states[site], order.weights[site], order.together, masked=order.masked, out=out)
        self._damaged = ""


def add(totals: Numbers, state: State, weight: int, together: int, *, masked: bool, out: bool = False) -> None:
    """Add a site's weighted adapter to a sum of integers modulo 2^64, or take it `out`, one tensor after the other.

    The totals are changed; before the first adapter they are empty. A masked adapter, or a sum, consists of integers
    already. The weight is n_k, and `together` the number of sites of the round.
    """
    for key, tensor in state.items():
        numbers = from_wire(tensor) if masked else encode({key: tensor}, weight, together)[key]
        if key not in totals:
            totals[key] = np.zeros_like(numbers)
        if out:
            totals[key] -= numbers
        else:
            totals[key] += numbers


M = TypeVar("M", Measured, PartialSum)


class Relays(Protocol):
    """The relays of a job, as its server reaches them."""

    def relays_of(self, sites: Collection[str]) -> dict[str, str]:
        """Return by site its relay; empty: it is connected to the server."""

    def ask(self, relay: str, order: SumOrder | SumQuery, kind: type[M]) -> M:
        """Send an order to a relay and return its answer; the error of one that does not answer names it."""


class NoRelays:
    """The relays of a job whose sites are all connected to its server."""

    def relays_of(self, sites: Collection[str]) -> dict[str, str]:
        """Return an empty name for each site."""
        return dict.fromkeys(sites, "")

    def ask(self, relay: str, order: SumOrder | SumQuery, kind: type[M]) -> M:
        """Refuse: there is no relay."""
        raise FedpeftError(f"there is no relay {relay}.")


class RelaySums:
    """Adds up the adapters of a job's rounds, partly at relays; the sites must have adapters of the same shapes."""

    def __init__(self, relays: Relays, method: MethodSettings, introductions: Mapping[str, Introduction]) -> None:
        first, *others = introductions.values()
        if any((other.schema, other.dtype) != (first.schema, first.dtype) for other in others):
            raise FedpeftError(
                "federation.sums_at_relays adds up the same tensors of all sites, and these have adapters of "
                "different shapes or dtypes: use the same backbone and widths everywhere, or leave it out."
            )
        self._relays, self._masked, self._dtype = relays, method.secure_sum, first.dtype
        self._announced = {site: weight_of(i.samples["train"], method) for site, i in introductions.items()}
        robust = cast("RobustSettings", method.robust)
        self._max_share = 1.0 if self._masked else robust.max_share  # sites mask what they weighed themselves
        self._weights: dict[str, int] = {}  # by site of the round
        self._schema, self._together, self._round = first.schema, 0, 0
        self._places: dict[str, str] = {}  # by site of the round
        self._start: State = {}  # the global adapter of the round
        self._lengths: dict[str, float] = {}  # by site whose adapter is at a relay, as that measured it
        self._totals: Numbers = {}  # of the relays that have answered
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of the adapter that each site sends, to its relay or to the server."""
        width = 8 if self._masked else getattr(torch, self._dtype).itemsize
        return sum(math.prod(shape) for shape in self._schema.values()) * width

    def begin(self, round: int, sites: Sequence[str], state: State) -> tuple[dict[str, str], dict[str, str]]:
        """Order the sums of a round; return the relay of each site (empty: none), and why others take no part.

        `state` is the global adapter that the sites train.
        """
        self._round, self._together, self._totals, self._start = round, len(sites), {}, state
        self._places = self._relays.relays_of(sites)
        capped = cap_share([self._announced[site] for site in sites], self._max_share)
        self._weights = {site: max(1, int(weight)) for site, weight in zip(sites, capped, strict=True)}
        orders = {
            relay: SumOrder(
                round=round,
                weights={site: self._weights[site] for site in group},
                together=len(sites),
                dtype=self._dtype,
                masked=self._masked,
                state=state,
            )
            for relay, group in self._groups(sites).items()
        }
        failed = self._ask(orders, Measured)
        refused = {site: failed[self._places[site]] for site in sites if self._places[site] in failed}
        return {site: self._places[site] for site in sites if site not in refused}, refused

    def check(self, site: str, state: State) -> None:
        """Refuse an adapter that a site sent directly to the server and that no sum can hold."""
        try:
            if not self._masked:
                check_fits(state, weight=self._weights[site], sites=self._together)
        except FedpeftError as error:
            raise FedpeftError(f"site {site}: {error}", code=error.code) from error

    def measured(self, sites: Iterable[str]) -> tuple[dict[str, float], dict[str, str]]:
        """Return how far the sites with adapters at relays moved, and why others cannot be used."""
        groups = self._groups(sites)
        answers: dict[str, Measured] = {}
        failed = self._ask({relay: SumQuery(round=self._round) for relay in groups}, Measured, answers.__setitem__)
        lengths: dict[str, float] = {}
        refused: dict[str, str] = {}
        for relay, group in groups.items():
            for site in group:
                answer = answers.get(relay)
                length = answer.lengths.get(site) if answer else None
                if length is not None and 0 <= length <= MAX_FIGURE:
                    lengths[site] = length
                else:
                    missing = f"the adapter of site {site} did not reach relay {relay}."
                    refused[site] = answer.refused.get(site, missing) if answer else failed[relay]
        self._lengths = lengths
        return lengths, refused

    def add_up(self, sites: Iterable[str]) -> dict[str, str]:
        """Let the relays add up these sites; return why some are not in a sum.

        The mean of adapters is no further from the global one than they are on average. So no relay can send a sum
        beyond the lengths that it measured, which were compared with those of all other sites.
        """
        groups = self._groups(sites)

        def take(relay: str, answer: PartialSum) -> None:
            if answer.sites != groups[relay]:
                raise FedpeftError(f"relay {relay} added up other sites than it was asked to: look at its log.")
            if misfit := first_misfit(answer.state, self._schema, dtype="int64"):
                raise FedpeftError(
                    f"relay {relay} sent no sum of the announced tensors ({misfit.what} {misfit.key}): install the "
                    f"same fedpeft version there."
                )
            if not self._masked:
                self._check_reach(relay, answer)
            with self._lock:
                add(self._totals, answer.state, 1, self._together, masked=True)

        orders = {relay: SumQuery(round=self._round, sites=group) for relay, group in groups.items()}
        failed = self._ask(orders, PartialSum, take)
        return {site: failed[relay] for relay, group in groups.items() if relay in failed for site in group}

    def _check_reach(self, relay: str, answer: PartialSum) -> None:
        """Refuse a sum whose mean is further from the global adapter than the measured adapters allow."""
        weights = {site: self._weights[site] for site in answer.sites}
        whole, square, count = sum(weights.values()), 0.0, 0
        for key, tensor in answer.state.items():
            mean = decode({key: from_wire(tensor)}, whole, {key: torch.float64})
            square += update_length(mean, self._start) ** 2 * tensor.numel()
            count += tensor.numel()
        reach = sum(weight * self._lengths[site] for site, weight in weights.items()) / whole
        if not math.sqrt(square / max(count, 1)) <= reach * (1 + ROUNDING) + ROUNDING:
            raise FedpeftError(
                f"relay {relay} sent a sum that the adapters which it measured cannot have: look at its log, or "
                f"let its sites connect to another."
            )

    def mean(self, replies: Mapping[str, TrainReply], previous: State) -> State:
        """Return the weighted mean of a round's adapters, of replies and relays, in the dtypes of the previous one."""
        for site, reply in replies.items():
            if not self._places[site]:
                add(self._totals, reply.state, self._weights[site], self._together, masked=self._masked)
        if self._masked:
            check_cancelled(self._totals)
        dtypes: dict[str, torch.dtype] = {key: tensor.dtype for key, tensor in previous.items()}
        return decode(self._totals, sum(self._weights[site] for site in replies), dtypes)

    def _groups(self, sites: Iterable[str]) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for site in sites:
            if relay := self._places[site]:
                groups.setdefault(relay, []).append(site)
        return groups

    def _ask(
        self,
        orders: Mapping[str, SumOrder] | Mapping[str, SumQuery],
        kind: type[M],
        take: Callable[[str, M], None] = lambda relay, answer: None,
    ) -> dict[str, str]:
        """Ask the relays, several at a time, and take each answer as it comes; return by relay why it failed."""
        failed: dict[str, str] = {}

        def ask(relay: str) -> None:
            try:
                answer = self._relays.ask(relay, orders[relay], kind)
                if answer.round != self._round:
                    raise FedpeftError(f"relay {relay} answered for round {answer.round} in round {self._round}.")
                take(relay, answer)
            except FedpeftError as error:
                failed[relay] = str(error)
            except Exception as error:  # whatever a relay sends may cost only its own sites the round
                failed[relay] = f"relay {relay} sent an answer that cannot be read ({type(error).__name__})."

        with ThreadPoolExecutor(MAX_AT_ONCE) as threads:
            list(threads.map(ask, orders))
        return failed

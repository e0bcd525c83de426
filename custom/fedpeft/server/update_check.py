# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Find sites whose update is much larger than the others' in a round, or too large over the rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedpeft.alignment.averaging import robust_row
from fedpeft.alignment.factors import factor_places
from fedpeft.alignment.low_rank import product_length
from fedpeft.alignment.settings import MEDIAN, RobustSettings
from fedpeft.answering.training_settings import PERSONALIZATIONS, TrainingSettings
from fedpeft.core.keys import CONNECTOR, HEAD
from fedpeft.core.states import State, Store, in_memory
from fedpeft.job.settings import kept_share
from fedpeft.methods.settings import MethodSettings
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.site.loop import NORMALIZES, sum_of_rate_factors

MEDIAN_RULE = RobustSettings(average=MEDIAN)
MIN_REPLIES = 5  # among fewer, two that agree may set the median
MOVED_NEURONS = 2.0  # a permutation changes a tensor by at most twice its own norm
MAX_COLUMNS = 2**16  # numbers of a tensor whose median is computed at once
INITIAL_SIZE = 1.0  # no initial adapter has a larger root mean square


class UpdateCheck:
    """Compares, in every round, how far the sites trained their adapters.

    The limit of a round is `update_factor` times the median, so that fewer than half of the sites cannot raise it. Half
    of them could lower it by hardly moving. So it is never below what training explains, whatever others send: the sum
    of the learning rates of the site's steps, times the root of `update_factor`; among three or more sites at most
    `update_factor` times that sum of the median site, however many samples a site announces. Honest sites with AdamW
    move by 0.15 to 0.7 of their sum. If a step has no such bound, or sites move neurons, fewer than `MIN_REPLIES`
    replies refuse no site that moved by less than twice the size of the adapter.

    A site that joins starts from values of its own: in that round it may also move by the size of first values.

    Over the rounds a site may move by the root of `update_factor` times the median (one that takes more steps by more,
    at most `update_factor` times), or by the sum of learning rates. Anything beyond that adds up, to at most one limit.

    A site that keeps a part of its own adapter starts a round between the global adapter and its own last one. How far
    it trained is counted from the nearest such point: late in a run, training may be far less than what is kept. If a
    site moves neurons of the global adapter before it keeps its own, that counts as training even when nobody trains
    much any more; so the median is then the largest one of the run so far.

    Args:
        method: has `robust.update_factor`; 0 refuses no site, nor does a secure sum, which hides updates.
        training: says how far a site can train in a round.
        schedule: says when sites join.
        own, median, excess: of a resumed run; see the attributes.
        store: where the server keeps tensors.

    Attributes:
        own: by site, the adapter that it sent last; empty where every site starts from the global adapter.
        median: the largest median of the rounds so far; 0 where every site starts from the global adapter.
        excess: by site, how far it moved beyond what it may over the rounds, as a fraction of a round's limit.
    """

    def __init__(
        self,
        method: MethodSettings,
        training: TrainingSettings,
        schedule: ScheduleSettings | None = None,
        *,
        own: Mapping[str, State] | None = None,
        median: float = 0.0,
        excess: Mapping[str, float] | None = None,
        store: Store = in_memory,
    ) -> None:
        hidden = not method.exchanges or method.secure_sum
        self._factor = 0.0 if hidden else method.robust.update_factor
        self._kept = kept_share(method, training)
        # client PIA and methods that keep their own adapter load these as received; FedALA mixes all but the head
        self._received = (HEAD,) if PERSONALIZATIONS[training.personalization].max_kept else (CONNECTOR, HEAD)
        self._stacked = method.rule.stacks
        self._training, self._schedule = training, schedule or ScheduleSettings()
        self._rate = max(training.learning_rate, (method.federates_head and training.head_learning_rate) or 0.0)
        self._normalizes = NORMALIZES[training.optimizer]
        changes_shape = self._stacked or bool(method.site_settings)  # the global factors may have another rank
        self._bounded = self._normalizes and not self._kept and not changes_shape
        self.own: dict[str, State] = dict(own or {})
        self.median = median
        self._store = store
        self.excess: dict[str, float] = dict(excess or {})

    def outlying(
        self,
        states: Mapping[str, Mapping[str, Tensor]],
        previous: State,
        samples: Mapping[str, int],
        round: int,
        measured: Mapping[str, float] | None = None,
    ) -> dict[str, str]:
        """Return by site why its update is refused in this round, and note what later rounds need.

        An update's length is the root mean square of its numbers, so that sites with few layers or neurons are
        comparable to others. The median of an even number of sites is the lower of the middle two, which one site
        cannot raise; sites without any change do not count.

        Args:
            states: the received adapters by site.
            previous: the adapter that the sites were sent; empty in a first round with different initial adapters:
                the reference is then the round's coordinate-wise median, or 0 for two sites.
            samples: by site, the training samples that it announced.
            round: counted from 1.
            measured: length of the update, by site with its adapter at a relay (`fedpeft.server.relay_sums`).
        """
        if not self._factor or len(states) + len(measured or {}) < 2:
            return {}
        unknown = not previous and len(states) == 2
        start = previous or ({} if unknown else _median_of(states, self._store))
        lengths = {
            site: update_length(
                state,
                start,
                stacked=self._stacked,
                own=self.own.get(site),
                kept=self._kept,
                as_received=self._received,
            )
            for site, state in states.items()
        } | dict(measured or {})
        median, when = self._median_length(lengths.values(), remembered=self._kept and not unknown)
        learning = self._learning_by_site(samples, round)
        typical, few = statistics.median_high(learning.values()), len(lengths) < MIN_REPLIES
        refused = {}
        for site, length in lengths.items():
            sent = states.get(site, start)
            whole = not self._stacked and (_is_reshaped(sent, start) or (few and not self._bounded))
            size = _size_of(start, sent) if whole else 0.0
            explained, pace = self._movement_limits(learning[site], typical, median, few=few, size=size)
            if unknown or self._schedule.joins_in(round, site):  # it starts from other values than it was sent
                explained = pace = max(explained, INITIAL_SIZE)
            limit = max(self._factor * median, explained)
            reason = ""
            if length > limit:
                reason = f"{self._factor:g} times the {median:.3g} of the median site{when}"
                if limit == explained:
                    reason = f"the {limit:.3g} that training in this job explains"
            elif length - pace > (1 - self.excess.get(site, 0.0)) * limit:
                reason = f"the {pace:.3g} that it may still move in a round after having moved far in earlier ones"
            self._add_excess(site, -pace if reason else length - pace, limit)
            if reason:
                refused[site] = (
                    f"site {site} moved its adapter by {length:.3g} on average, which is more than {reason} "
                    f"(method.robust.update_factor): its update is refused."
                )
        return refused

    def _median_length(self, lengths: Iterable[float], *, remembered: bool) -> tuple[float, str]:
        """Return the median of the lengths above 0, or that of an earlier round where it is remembered and larger."""
        moved = sorted(length for length in lengths if length > 0)
        median = moved[(len(moved) - 1) // 2] if moved else 0.0
        if not remembered:
            return median, ""
        when = " in an earlier round" * (self.median > median)
        self.median = max(median, self.median)
        return self.median, when

    def _movement_limits(
        self, learning: float, typical: float, median: float, *, few: bool, size: float
    ) -> tuple[float, float]:
        """Return how far a site may move in one round as training explains it, and how far in every round.

        `learning` is the sum of the learning rates of the site's steps, and `typical` the median of these sums. `few`:
        there are so few replies that one site could set the median. `size` is the adapter's, if neurons may be moved as
        a whole, or the site has others in number; else 0.
        """
        room = math.sqrt(self._factor)
        explained = min(room * learning, self._factor * typical) if self._normalizes and (few or self._bounded) else 0.0
        explained += MOVED_NEURONS * size
        longer = min(room * max(learning / typical, 1.0), self._factor)
        return explained, max(longer * median, learning if self._bounded else explained)

    def _add_excess(self, site: str, excess: float, limit: float) -> None:
        if limit:
            self.excess[site] = max(self.excess.get(site, 0.0) + excess / limit, 0.0)

    def _learning_by_site(self, samples: Mapping[str, int], round: int) -> dict[str, float]:
        """Return by site the sum of the learning rates of its steps in a round.

        Among three or more sites none counts with more than `update_factor` times the median samples, so that no site
        raises its limit by announcing many.
        """
        most = self._factor * statistics.median_high(samples.values()) if len(samples) > 2 else math.inf
        return {
            site: self._rate
            * sum_of_rate_factors(
                self._training, samples=min(count, most), round=round, first=self._schedule.first_round(site)
            )
            for site, count in samples.items()
        }

    def accept(self, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Note the accepted adapters if their sites may keep a part of them."""
        if self._factor and self._kept:
            self.own |= {site: self._store({**self.own.get(site, {}), **state}) for site, state in states.items()}


def _is_reshaped(sent: Mapping[str, Tensor], start: State) -> bool:
    """Return whether a site has a tensor of another shape than the global one: `update_length` counts all of it."""
    return any(key in start and start[key].shape != tensor.shape for key, tensor in sent.items())


def _size_of(start: State, sent: Mapping[str, Tensor]) -> float:
    """Return the root mean square of those tensors of a start that a site sent."""
    keys = [key for key in sent if key in start]
    count = sum(start[key].numel() for key in keys)
    return math.sqrt(sum(float(start[key].double().square().sum()) for key in keys) / count) if count else 0.0


def update_length(
    state: Mapping[str, Tensor],
    start: State,
    *,
    stacked: bool = False,
    own: State | None = None,
    kept: float = 0.0,
    as_received: tuple[str, ...] = (),
) -> float:
    """Return the root mean square of a change; a tensor with another shape than at the start counts as it is.

    `stacked`: factors start anew in every round, so that their whole product is the update. The change is counted from
    the nearest point between `start` and the part `kept` of the way to `own`, which the site sent last. Sites keep
    nothing of keys that begin with one of `as_received`: their change is counted from `start`.
    """
    total, count = product_length(state) if stacked else (0.0, 0)
    factors = {key for names in factor_places(state).values() for key in names.values()} if stacked else ()
    along, way = 0.0, 0.0  # scalar products of the way to `own` with the change, and with itself
    for key in state:
        if key in factors:
            continue
        tensor = state[key]
        before, last = start.get(key), None if key.startswith(as_received) else (own or {}).get(key)
        if before is None or before.shape != tensor.shape:
            change = tensor.double()
        else:
            change = tensor.double() - before.double()
            if last is not None and last.shape == tensor.shape:
                to_own = last.double() - before.double()
                along += float((to_own * change).sum())
                way += float(to_own.square().sum())
        total += float(change.square().sum())
        count += tensor.numel()
    part = min(max(along / way, 0.0), kept) if way else 0.0
    return math.sqrt(max(total - 2 * part * along + part * part * way, 0.0) / count) if count else 0.0


def _median_of(states: Mapping[str, Mapping[str, Tensor]], store: Store) -> State:
    """Return the coordinate-wise median of the tensors that at least two sites sent in the same shape."""
    median: State = {}
    for key in {key for state in states.values() for key in state}:
        tensors = [state[key] for state in states.values() if key in state]
        if len(tensors) > 1 and len({tensor.shape for tensor in tensors}) == 1:
            parts = [
                robust_row(torch.stack([part.double() for part in parts]), MEDIAN_RULE)
                for parts in zip(*(tensor.flatten().split(MAX_COLUMNS) for tensor in tensors), strict=True)
            ]
            median |= store({key: torch.cat(parts).reshape(tensors[0].shape)})
    return median

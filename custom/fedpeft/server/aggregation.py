# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Aggregate the sites' adapters of a round into the global adapter, and take the server optimizer's step.

    D = aggregated - x                      after alignment, of the updates that were not refused
    x <- x + rate * momentum's or Adam's direction of D

A tensor that no site trained in a round keeps its value and its moments, as with a gradient that is None.

Source: Hsu et al. 2019 (FedAvgM), https://arxiv.org/abs/1909.06335; Reddi et al. 2021, Algorithm 2,
https://arxiv.org/abs/2003.00295.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpeft.alignment.averaging import cap_share
from fedpeft.alignment.neurons import check_tensors
from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import imported
from fedpeft.core.states import State, Store, computable, in_memory
from fedpeft.methods.aggregations import SERVER_OPTIMIZERS
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.secure_sum import secure_mean
from fedpeft.protocol.types import TrainReply

Moments = dict[str, Tensor]  # of one tensor, by name


def momentum(moments: Moments, change: Tensor, settings: MethodSettings) -> Tensor:
    """Return `m <- b1 m + D`."""
    moments["m"] = settings.server_momentum * _kept(moments, "m", change) + change
    return moments["m"]


def adagrad(moments: Moments, change: Tensor, settings: MethodSettings) -> Tensor:
    """Return `m / (sqrt(v) + tau)` with `v <- v + D^2`."""
    return _scaled(moments, change, settings, _second(moments, change, settings) + change.square())


def adam(moments: Moments, change: Tensor, settings: MethodSettings) -> Tensor:
    """Return `m / (sqrt(v) + tau)` with `v <- b2 v + (1 - b2) D^2`; there is no correction of the bias."""
    decay, square = settings.server_decay, change.square()
    return _scaled(moments, change, settings, decay * _second(moments, change, settings) + (1 - decay) * square)


def yogi(moments: Moments, change: Tensor, settings: MethodSettings) -> Tensor:
    """Return `m / (sqrt(v) + tau)` with `v <- v - (1 - b2) D^2 sign(v - D^2)`."""
    before, square = _second(moments, change, settings), change.square()
    return _scaled(moments, change, settings, before - (1 - settings.server_decay) * square * (before - square).sign())


def _kept(moments: Moments, name: str, change: Tensor) -> Tensor:
    return moments.get(name, torch.zeros_like(change))


def _second(moments: Moments, change: Tensor, settings: MethodSettings) -> Tensor:
    return moments.get("v", torch.full_like(change, settings.server_tau**2))


def _scaled(moments: Moments, change: Tensor, settings: MethodSettings, second: Tensor) -> Tensor:
    first = settings.server_momentum * _kept(moments, "m", change) + (1 - settings.server_momentum) * change
    moments["m"], moments["v"] = first, second
    return first / (second.sqrt() + settings.server_tau)


class ServerSteps:
    """Makes the global adapter of one round after the other out of the aggregated ones.

    The moments are float32, by key of a tensor and name; a resumed run with them gives the same bytes.
    """

    def __init__(self, method: MethodSettings, moments: Mapping[str, Moments] | None = None) -> None:
        self._settings, self._rule = method, SERVER_OPTIMIZERS[method.server_optimizer]
        self._rate = self._rule.learning_rate if method.server_learning_rate is None else method.server_learning_rate
        self.moments: dict[str, Moments] = {key: dict(own) for key, own in (moments or {}).items()}

    def step(self, before: State, aggregated: State, trained: Collection[str], *, store: Store = in_memory) -> State:
        """Return the new global adapter.

        It is made of the one that the sites were sent and the aggregated one; `trained` are the keys that a site sent.
        """
        if not self._rule.steps:
            return aggregated
        direction = imported(self._rule.home)
        stepped = dict(aggregated)
        for key in sorted(set(trained) & set(aggregated)):
            start = computable(before[key])
            change = computable(aggregated[key]) - start
            step = direction(self.moments.setdefault(key, {}), change, self._settings)
            stepped |= store({key: (start + self._rate * step).to(aggregated[key].dtype)})
        return stepped


GLOBAL = "the new global adapter"
MAX_GLOBAL = 1e7  # a site may send values up to 1e6


def aggregate(
    replies: Mapping[str, tuple[Mapping[str, Tensor], int]],
    method: MethodSettings,
    *,
    previous: State | None,
    store: Store = in_memory,
) -> tuple[State, dict[str, Any]]:
    """Aggregate as the job's `method.aggregation` says (`fedpeft.methods.aggregations`).

    Sites are sorted by name, so the result does not depend on the order of their replies: an adapter under wire keys
    (with `secure_sum`, masked) and a number of training samples. Layers that no site sent keep their previous values. A
    result that is not finite or too large raises an error, and must not be saved or sent.
    """
    if method.secure_sum:
        merged = secure_mean(replies, method, previous=previous or {}, store=store)
        check_global(merged)
        return merged, {}
    if method.aligns:
        method.method.neuron_layout()  # of a plugin that cannot be imported here, nothing would be aligned
    sites = sorted(replies)
    states, counts = zip(*(replies[site] for site in sites), strict=True)
    settings = method.pia if method.aligns else replace(method.pia, server=False, aligned_at="server")
    integrate = imported(method.rule.home)
    merged, report = integrate(
        states, counts, settings, sites=sites, previous=previous, robust=method.robust, store=store
    )
    check_global(merged)
    return merged, report


class Aggregator:
    """Aggregates the replies of one round after the other."""

    def __init__(self, method: MethodSettings) -> None:
        self._method = method
        self._previous: State | None = None

    def start_from(self, state: State) -> None:
        """Set the global adapter before the first round; layers that no site trains keep its values."""
        self._previous = state or None

    def integrate(self, replies: Mapping[str, TrainReply]) -> tuple[State, dict[str, Any]]:
        """Return the aggregated adapter and the report of its alignment."""
        sent = {site: (reply.state, reply.samples) for site, reply in replies.items()}
        return aggregate(sent, self._method, previous=self._previous)

    def stored(self, state: Mapping[str, Tensor]) -> State:
        """Return the tensors as they are: all replies are in memory here."""
        return in_memory(state)

    def keep(self, state: State) -> None:
        """Set the global adapter of a round; layers that no site trains next keep its values."""
        self._previous = state


def parts_of(samples: Mapping[str, int], method: MethodSettings) -> dict[str, float]:
    """Each site's part in the mean of a round, by site, where the sites need it (`share: agreement`); else empty.

    `samples` has the number of training samples of each site whose adapter went into the mean; it is empty before the
    first mean.
    """
    if not (samples and method.aligns and method.pia.follows_agreement):
        return {}
    counts = cap_share(list(samples.values()), method.robust.max_share)
    if method.pia.weighting == "uniform" or not method.pia.normalize:
        counts = [1] * len(samples)
    return {site: count / sum(counts) for site, count in zip(samples, counts, strict=True)}


def check_global(state: State) -> None:
    """Refuse a global adapter that is not finite or too large."""
    check_tensors(state, GLOBAL)
    for key, tensor in state.items():
        if tensor.numel() and float(tensor.abs().max()) > MAX_GLOBAL:
            raise FedpeftError(
                f"{GLOBAL} has numbers above {MAX_GLOBAL:g} in {key}: the earlier rounds are kept: find the site "
                f"whose training diverges, then continue with resume_from=latest."
            )

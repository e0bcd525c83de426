# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Aggregate the sites' adapters of a round into the global adapter, in the way that the job names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedpeft.alignment.averaging import cap_share
from fedpeft.alignment.neurons import check_tensors
from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import imported
from fedpeft.core.states import State, Store, in_memory
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.secure_sum import secure_mean
from fedpeft.protocol.types import TrainReply

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

    A reply has an adapter under wire keys (with `secure_sum`, masked) and a number of training samples. Replies are
    sorted by site, so that their order does not matter. Layers that no site sent keep their previous values. A result
    that is not finite or too large raises an error: it must not be saved or sent.
    """
    if method.secure_sum:
        merged = secure_mean(replies, method, previous=previous or {}, store=store)
        check_global(merged)
        return merged, {}
    if method.aligns:
        method.registered.neuron_layout()  # raises if a plugin cannot be imported here: nothing would be aligned
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
    """Return each site's part in the mean of a round where the sites need it (`share: agreement`); else nothing.

    `samples` has the training samples of each site whose adapter is in the mean; it is empty before the first mean.
    """
    if not (samples and method.aligns and method.pia.follows_agreement):
        return {}
    counts, pia = list(samples.values()), method.pia
    if not method.secure_sum:
        counts = cap_share(counts, method.robust.max_share)  # for a secure sum each site has weighted its own
    if pia.weighting == "uniform" or (pia.aligns_on_server and not pia.normalize):
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

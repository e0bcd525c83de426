# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Server optimizers: they take the change of the global adapter over a round as a gradient, and make a step.

    D = aggregated - x                      after alignment, of the updates that were not refused
    x <- x + rate * momentum's or Adam's direction of D

A tensor that no site trained in a round keeps its value and its moments, as with a gradient that is None. FLARE's own
(`PTFedOptModelShareableGenerator`) needs the model's class on the server, which here has only tensors.

Source: Hsu et al. 2019 (FedAvgM), https://arxiv.org/abs/1909.06335; Reddi et al. 2021, Algorithm 2,
https://arxiv.org/abs/2003.00295.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from fedpeft.core.registry import imported
from fedpeft.core.states import State, Store, computable, in_memory
from fedpeft.methods.aggregations import SERVER_OPTIMIZERS
from fedpeft.methods.settings import MethodSettings

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
    """Makes each round's global adapter from the aggregated one.

    The moments are float32, by a tensor's key and by name; with them a resumed run gives the same bytes.
    """

    def __init__(self, method: MethodSettings, moments: Mapping[str, Moments] | None = None) -> None:
        self._settings, self._rule = method, SERVER_OPTIMIZERS[method.server_optimizer]
        self._rate = self._rule.learning_rate if method.server_learning_rate is None else method.server_learning_rate
        self.moments: dict[str, Moments] = {key: dict(own) for key, own in (moments or {}).items()}

    def step(self, before: State, aggregated: State, trained: Collection[str], *, store: Store = in_memory) -> State:
        """Return the new global adapter: a step from `before`, which the sites were sent, for the keys in `trained`."""
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

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD: every step of a site is corrected by what the steps of all sites have in common and its own have not.

    y <- y - eta (g(y) - c_k + c)          in every step, eta its learning rate
    c_k <- c_k - c + (x - y) / S           after the round; x what it began with, S the sum of its rates ("option II")

c is the mean of the c_k. Where all sites take part and their rates add up alike, it is the change of the global adapter
over the last round, divided by -S: each site computes it from what it received anyway. Nothing more is sent, and secure
sums hide the sites' c_k as they hide their adapters. Elsewhere c is the same quotient with the site's own S, the mean
movement in steps of this site.

The correction is added after the optimizer has stepped, so that g stands for whatever its step divided by eta is. With
SGD this is the paper's algorithm. FLARE's own (`nvflare.app_opt.pt.scaffold`) sends the control variates as a second
set of tensors beside a whole model, which the contract of replies, secure sums and layers that one site trains alone
would each have to treat.

Source: Karimireddy et al. 2020, SCAFFOLD, Algorithm 1, https://arxiv.org/abs/1910.06378.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.keys import HEAD
from fedpeft.core.states import State
from fedpeft.site.site_state import SiteState

OWN, GLOBAL, RATES = "own/", "global/", "rates/"  # of what is kept from round to round


class ControlVariates:
    """Those of one site in one round.

    Args:
        near: the global tensors that the round begins with, by key; these are corrected, and no others.
        kept: `kept` of the site's last round; empty: this is its first one.
        rounds: since then.

    Attributes:
        kept: what the next round needs, for the site's disk, once this one is trained.
    """

    def __init__(self, near: Mapping[str, Tensor], kept: State, *, rounds: int) -> None:
        self.kept: State = {}
        self._near = dict(near)
        self._own = _named(kept, OWN)
        before, rates = _named(kept, GLOBAL), _named(kept, RATES)
        self._all = {
            key: (before[key] - tensor) / (rates[_rate_of(key)].item() * rounds)
            for key, tensor in near.items()
            if key in before and rates[_rate_of(key)] > 0
        }

    @classmethod
    def of_round(cls, training: TrainingSettings, round: int, own: SiteState | None, near: State) -> ControlVariates:
        """Those of a round, counted from 1; without `training.scaffold` of no tensor.

        Args:
            training: the local recipe.
            round: counted from 1.
            own: the site's state after its last round; None: this is its first one.
            near: the global tensors that the round begins with, by key.
        """
        kept, rounds = (own.control, round - own.round) if own else ({}, 1)
        return cls(near if training.scaffold else {}, kept, rounds=rounds)

    @contextmanager
    def correcting(self, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Correct every step of this block, and compute the next round's control variates when it ends.

        Args:
            parameters: what may be trained, by key; those without a gradient are left alone.
            optimizer: of the block, whose groups name their parameters.
        """
        if not self._near:
            yield
            return
        start = {key: parameters[key].detach().clone() for key in self._near if key in parameters}
        change = {key: (self._own_of(key) - c).to(start[key]) for key, c in self._all.items() if key in start}
        sums = dict.fromkeys(map(_rate_of, ("", HEAD)), 0.0)

        @torch.no_grad()
        def correct(*_: Any) -> None:
            rates = {}
            for group in optimizer.param_groups:
                rates[_rate_of(group["names"][0])] = group["lr"]
                for key, parameter in zip(group["names"], group["params"], strict=True):
                    if key in change and parameter.grad is not None:
                        parameter.add_(change[key], alpha=group["lr"])
            for name, rate in rates.items():
                sums[name] += rate

        hook = optimizer.register_step_post_hook(correct)
        try:
            yield
        finally:
            hook.remove()
        trained = {key for group in optimizer.param_groups for key in group["names"]}
        own = dict(self._own)
        for key, tensor in start.items():
            if key in trained and sums[_rate_of(key)] > 0:
                moved = (tensor - parameters[key].detach()).cpu() / sums[_rate_of(key)]
                own[key] = self._own_of(key) - self._all.get(key, 0.0) + moved
        self.kept = {
            **{f"{OWN}{key}": tensor for key, tensor in own.items()},
            **{f"{GLOBAL}{key}": tensor.detach().cpu().clone() for key, tensor in self._near.items()},
            **{f"{RATES}{name}": torch.tensor(total, dtype=torch.float64) for name, total in sums.items()},
        }

    def _own_of(self, key: str) -> Tensor:
        return self._own[key] if key in self._own else torch.zeros_like(self._near[key], device="cpu")


def _named(kept: State, prefix: str) -> State:
    return {key.removeprefix(prefix): tensor for key, tensor in kept.items() if key.startswith(prefix)}


def _rate_of(key: str) -> str:
    """The name of the learning rate of a tensor: a head has its own."""
    return "head" if key.startswith(HEAD) else "adapter"

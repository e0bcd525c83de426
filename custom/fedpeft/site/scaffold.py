# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD: every step of a site is corrected by the difference between the mean step of all sites and its own.

    y <- y - eta (g(y) - c_k + c)     in every step, eta its learning rate
    c_k <- mean of g over the steps, weighted by eta ("option II")
    sent: y without the corrections, x - S c_k     x the tensors at the start of the round, S the sum of its rates

c is the mean of the c_k, so that the corrections of all sites add up to zero. If all take part with one S, the mean of
the uploads is that of the y: the paper's global adapter. Its change over a round is -S times the mean of the c_k of
that round, so a site computes c from the adapter that it receives anyway: no second set of tensors travels, and c_k
stays at the site. If sites take different numbers of steps, c is the mean movement in steps of the site. Noise, a
refused reply or an absent site change only the next c: each is measured anew.

A tensor is corrected if the site also trained it in its last round; if layers are scheduled, only if that was the round
before, because nobody may have trained it since. The correction is added after the optimizer's step, so that g is that
step divided by eta: with SGD this is the paper's algorithm. FLARE's own (`nvflare.app_opt.pt.scaffold`) sends the
control variates of a whole model beside it.

Source: Karimireddy et al. 2020, SCAFFOLD, Algorithm 1, https://arxiv.org/abs/1910.06378.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedpeft.alignment.client_pia import with_order
from fedpeft.core.states import State
from fedpeft.site.loop import sum_of_rate_factors
from fedpeft.site.site_state import SiteState

if TYPE_CHECKING:
    from fedpeft.site.learner import Learner

OWN, GLOBAL, RATES = "own/", "global/", "rates/"  # prefixes of kept tensors


class ControlVariates:
    """The control variates of one site in one round.

    Args:
        near: the global tensors x that the round begins with, by key; empty: nothing is corrected.
        kept: `kept` of the site's last round; empty: this is its first one.
        passed: by how many times the rates of that round the global tensors have moved since, 1 for the round before.

    Attributes:
        kept: tensors for the next round, to be written to the site's disk after training.
    """

    def __init__(self, near: Mapping[str, Tensor], kept: State, *, passed: float = 1.0) -> None:
        self.kept: State = {}
        self._near = dict(near)
        own, before, rates = (_named(kept, prefix) for prefix in (OWN, GLOBAL, RATES))
        self._change = {
            key: own[key] - (before[key] - near[key]) / (rate.item() * passed)
            for key, rate in rates.items()
            if key in near
        }
        self._added: State = {}

    @classmethod
    def start_round(cls, learner: Learner, round: int, own: SiteState | None, near: State) -> ControlVariates:
        """Return the control variates of a round; without `training.scaffold` they are empty.

        Args:
            learner: of the site.
            round: counted from 1.
            own: the site's state after its last round; None: this is its first one.
            near: the global tensors that the round begins with, by key; empty: there are none.
        """
        if not learner.training.scaffold:
            return cls({}, {})
        if own is None or (learner.schedule.active and own.round != round - 1):
            return cls(near, {})
        first, samples = learner.schedule.first_round(learner.site), len(learner.data.train)
        learned = [
            sum_of_rate_factors(learner.training, samples=samples, round=one, first=first)
            for one in range(own.round, round)
        ]
        return cls(near, own.control, passed=sum(learned) / learned[0] if learned[0] else 1.0)

    @contextmanager
    def correcting(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Correct every step of this block, and compute the next round's control variates when it ends.

        Args:
            optimizer: of the block, whose groups name their parameters; those without a gradient are left alone.
        """
        trained = [
            (group, key, parameter)
            for group in optimizer.param_groups
            for key, parameter in zip(group["names"], group["params"], strict=True)
            if key in self._near
        ]
        start = {key: parameter.detach().clone() for _, key, parameter in trained}
        change = {key: self._change[key].to(tensor) for key, tensor in start.items() if key in self._change}
        rates = dict.fromkeys(start, 0.0)

        @torch.no_grad()
        def correct(*_: Any) -> None:
            for group, key, parameter in trained:
                if parameter.grad is None:
                    continue
                rates[key] += group["lr"]
                if key in change:
                    parameter.add_(change[key], alpha=group["lr"])

        hook = optimizer.register_step_post_hook(correct)
        try:
            yield
        finally:
            hook.remove()
        self._added = {key: (rates[key] * tensor).cpu() for key, tensor in change.items()}
        self.kept = {}
        for _, key, parameter in trained:
            if rates[key] > 0:
                moved = (start[key] - parameter.detach()).cpu() + self._added.get(key, 0.0)
                self.kept[f"{OWN}{key}"] = moved / rates[key]
                self.kept[f"{GLOBAL}{key}"] = self._near[key].detach().cpu().clone()
                self.kept[f"{RATES}{key}"] = torch.tensor(rates[key], dtype=torch.float64)

    def uncorrected(self, state: State) -> State:
        """Return trained tensors without the corrections."""
        return {key: tensor - self._added[key] if key in self._added else tensor for key, tensor in state.items()}


def own_in_order(kept: State, orders: Mapping[str, Tensor]) -> State:
    """Return the site's own control variates with the neurons of these places moved, see `with_order`."""
    return {f"{OWN}{key}": tensor for key, tensor in with_order(_named(kept, OWN), orders).items()}


def _named(kept: State, prefix: str) -> State:
    return {key.removeprefix(prefix): tensor for key, tensor in kept.items() if key.startswith(prefix)}

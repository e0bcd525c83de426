# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Ditto: the exchanged model is trained as without it, and beside it one of the site's own, held near the global one.

    v_k <- argmin_v  loss_k(v) + lambda/2 |v - w_global|^2

The site's own model, with a head and moments of its own, is measured and kept, and never sent. Both train the same
epochs, so that a round takes twice the time.

Source: Li et al. 2021, Ditto, https://arxiv.org/abs/2012.04221.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedpeft.core.keys import only_head, without_head
from fedpeft.core.states import State, copied
from fedpeft.site.fedprox import held_near
from fedpeft.site.loop import Personalization, moments, restore_moments
from fedpeft.site.site_model import head_state

if TYPE_CHECKING:
    from fedpeft.site.learner import Learner


class Ditto(Personalization):
    """Trains the site's own model in one round; it begins as the exchanged one."""

    def __init__(self, learner: Learner, **context: Any) -> None:
        super().__init__(learner, **context)
        self.near, self.held, own = copied(self.near), copied(self.held), self.own
        self._adapter = own.trained or own.adapter if own else without_head(self.near)
        self._beside = self._head_and_private() if own is None else head_state(own.head) | own.private
        self._moments = own.personal if own else {}

    def train(self) -> dict[str, float]:
        learner, training = self.learner, self.learner.training
        self.exchanged = self._head_and_private()
        self._load(self._adapter, self._beside)
        optimizer = learner.optimizer()
        if training.optimizer_state == "keep":
            restore_moments(optimizer, self._moments)
        with held_near(learner.parameters(), optimizer, self.held, training.ditto_lambda):
            losses = learner.fit(optimizer, self.round)
        self.kept = moments(optimizer)
        return losses

    def restore(self, trained: State) -> None:
        self._load(trained, self.exchanged)

    def _head_and_private(self) -> State:
        return head_state(self.learner.head.state_dict()) | self.learner.trainable.private_state()

    def _load(self, adapter: State, beside: State) -> None:
        self.learner.trainable.load(adapter)
        self.learner.trainable.load_private(without_head(beside))
        self.learner.head.load_state_dict(only_head(beside))

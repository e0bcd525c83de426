# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FedALA: every number of a site's adapter takes a share of the global one that is learned before training.

    start = own + (global - own) W,    W <- clip(W - rate dloss/dstart (global - own), 0, 1)

W, one number for each of the adapter, is learned on 80 % of the training samples, in batches as in training: in its
first round until the loss settles, later in one pass. It stays at the site. What is trained from there is measured and
sent. Layers that are not trained in a round begin as the global adapter's.

Source: Zhang et al. 2023, FedALA, Algorithm 1, https://arxiv.org/abs/2212.01197.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fedpeft.core.keys import belongs, without_head
from fedpeft.site import computing
from fedpeft.site.loop import Personalization, parts_of

if TYPE_CHECKING:
    from fedpeft.site.learner import Learner

SHARE = 0.8  # of the training samples
FIRST_PASSES = 10  # in the first round, at most
SETTLED = 0.01  # relative change of the loss that ends them


class FedALA(Personalization):
    """Mixes the start of a round; a site's first round starts from the global adapter."""

    def __init__(self, learner: Learner, **context: Any) -> None:
        super().__init__(learner, **context)
        if (own := self.own) is None:
            return
        self._own, self._received = own.adapter, without_head(self.near)
        self._gaps = {key: self._received[key] - tensor for key, tensor in self._own.items()}
        self.kept = own.personal or {key: torch.ones_like(tensor) for key, tensor in self._own.items()}
        learner.trainable.train_only(self.layers)
        with computing.shortcuts(learner.backbone, learner.training):
            self._learn(passes=1 if own.personal else FIRST_PASSES)
        self._mix()

    def _learn(self, *, passes: int) -> None:
        """Learn the share of each number that is trained in this round."""
        learner, before = self.learner, float("inf")
        samples = len(learner.data.train)
        count = max(int(SHARE * samples), min(samples, learner.batches.smallest))
        seed, training = learner.seed_for("ala", self.round), learner.training
        batches = learner.batches.sample(count, seed, size=training.batch_size)
        answering = learner.answering.eval()
        trained = {key: one for key, one in learner.trainable.parameters().items() if one.requires_grad}
        for _ in range(passes):
            total = 0.0
            for batch in batches:
                self._mix()
                for parameter in trained.values():
                    parameter.grad = None
                for part in parts_of(batch, answering, training.micro_batch):
                    loss = part.loss(part.forward())
                    loss.backward()
                    total += loss.item()
                self._step({key: one.grad for key, one in trained.items()})
            if abs(before - total) < SETTLED * total:
                break
            before = total
        learner.answering.zero_grad(set_to_none=True)

    def _step(self, gradients: dict[str, torch.Tensor | None]) -> None:
        rate = self.learner.training.ala_rate
        for key, gradient in gradients.items():
            if gradient is not None and key in self._gaps:
                step = rate * gradient.cpu() * self._gaps[key]
                self.kept[key] = (self.kept[key] - step).clamp(0, 1)

    def _mix(self) -> None:
        """Load the mixture of the layers that are trained in this round; all others are the global adapter's."""
        mixed = {key: tensor + self._gaps[key] * self.kept[key] for key, tensor in self._own.items()}
        self.learner.trainable.load(
            {key: one if belongs(key, self.layers) else self._received[key] for key, one in mixed.items()}
        )

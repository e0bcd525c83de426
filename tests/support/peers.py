# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Ditto, FedALA and MOON as learners with everything in memory, written from the papers before there were settings.

They need `method.aggregation=fedavg`, one process for all rounds, and batches that are computed at once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from fedpeft.core.seeds import derive
from fedpeft.core.states import State
from fedpeft.site import client_round
from fedpeft.site.learner import Learner, Update
from fedpeft.site.loop import moments, restore_moments

ALA_SHARE, ALA_PASSES, ALA_SETTLED = 0.8, 10, 0.01


def pulled(learner: Learner, optimizer: torch.optim.Optimizer, anchor: State, strength: float):
    """Add the gradient of `strength/2 |w - anchor|^2` to that of every step."""
    pairs = [(p, anchor[key]) for key, p in learner.trainable.parameters().items()]

    def add(*_):
        (strength / 2 * sum((one - near).square().sum() for one, near in pairs)).backward()

    return optimizer.register_step_pre_hook(add)


class Ditto(Learner):
    """The global model is trained as FedAvg's; what is measured is the site's own, held near it."""

    strength = 0.1  # lambda
    _personal: tuple[State, dict[str, torch.Tensor], State] | None = None

    def train_round(
        self, round: int, received: State, layers: Sequence[int] | None = None, *, part: float = 0.0
    ) -> Update:
        update = super().train_round(round, received, layers, part=part)
        trained = self.trainable.state(), {key: value.clone() for key, value in self.head.state_dict().items()}
        adapter, head, kept = self._personal or (received or self.values.first, self.values.first_head, {})
        self.trainable.load(adapter)
        self.head.load_state_dict(head)
        optimizer = self.optimizer()
        if self.training.optimizer_state == "keep":
            restore_moments(optimizer, kept)  # its rates are those of a new one: the schedule starts from the peak
        anchor = {key: tensor.clone() for key, tensor in (received or self.values.first).items()}
        hook = pulled(self, optimizer, anchor, self.strength)
        losses = self.fit(optimizer, round)
        hook.remove()
        metrics = {**losses, **self.evaluate()}
        head = {key: value.clone() for key, value in self.head.state_dict().items()}
        self._personal = self.trainable.state(), head, moments(optimizer)
        self.trainable.load(trained[0])
        self.head.load_state_dict(trained[1])
        return Update(state=update.state, samples=update.samples, metrics=metrics)


class FedALA(Learner):
    """Each number of the adapter takes its own share of the global one, learned on the site's data before training."""

    rate = 1.0  # eta
    _weights: dict[str, torch.Tensor] | None = None

    def integrate(
        self, round: int, own: State | None, received: State, agreement: float | None = None
    ) -> client_round.Integration:
        integration = super().integrate(round, None, received or own or {})
        if own is None or not received:
            return integration
        first = self._weights is None
        weights = self._weights or {key: torch.ones_like(tensor) for key, tensor in own.items()}
        gaps = {key: received[key] - own[key] for key in own}
        seed = derive(self.training.seed, "ala", self.site, round)
        order = torch.randperm(len(self.data.train), generator=torch.Generator().manual_seed(seed)).tolist()
        chosen = [self.data.train[number] for number in order[: int(ALA_SHARE * len(order))]]
        samples = list(self.batches.draw(chosen, self.training.batch_size))
        parameters = self.trainable.parameters()
        self.trainable.train_only(None)
        before = float("inf")
        for _ in range(ALA_PASSES if first else 1):
            total = 0.0
            for batch in samples:
                self.trainable.load({key: own[key] + gaps[key] * weights[key] for key in own})
                loss = self.answering.loss(self.answering(batch.inputs), batch.target)
                gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
                for (key, _), gradient in zip(parameters.items(), gradients, strict=True):
                    if gradient is not None:
                        weights[key] = (weights[key] - self.rate * gradient.cpu() * gaps[key]).clamp(0, 1)
                total += loss.item()
            if abs(before - total) < ALA_SETTLED * total:
                break
            before = total
        self._weights = weights
        self.trainable.load({key: own[key] + gaps[key] * weights[key] for key in own})
        return integration


class Moon(Learner):
    """The term of MOON beside the loss, with whole copies of the three models."""

    mu, tau = 1.0, 0.5
    _before: torch.nn.Module | None = None
    _received: State | None = None

    def train_round(
        self, round: int, received: State, layers: Sequence[int] | None = None, *, part: float = 0.0
    ) -> Update:
        self._received = received
        update = super().train_round(round, received, layers, part=part)
        self._before = copy.deepcopy(self.answering).eval()
        return update

    def fit(self, optimizer, round):
        if self._before is None:
            return super().fit(optimizer, round)
        start = self.trainable.state()
        self.trainable.load(self._received)
        everyone = copy.deepcopy(self.answering).eval()
        self.trainable.load(start)
        before, cosine = self._before, torch.nn.CosineSimilarity(dim=-1)

        def step(parts, optimizer):
            [part] = parts
            [inputs] = part.forward.args
            with torch.no_grad():
                others = [model.backbone(**inputs) for model in (everyone, before)]
            z = self.backbone(**inputs)
            positive, negative = (torch.exp(cosine(z, other) / self.tau) for other in others)
            loss = part.loss(self.head(z)) - self.mu * torch.log(positive / (positive + negative)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.trainable.step = step
        try:
            return super().fit(optimizer, round)
        finally:
            del self.trainable.step

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a user would take instead of FedPIA against sites that differ, each on the adapters and in its few lines.

    FedProx   mu/2 |w - w_global|^2 beside the loss                                Li et al. 2020
    Ditto     a model of the site's own beside the global one, drawn towards it    Li et al. 2021
    FedALA    starts from w + (w_global - w) * W, W learned on the site's data     Zhang et al. 2023

They are learners for `fedpeft.federate`, with `method.aggregation=fedavg`; heads stay at the site, as everywhere here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fedpeft.core.seeds import derive
from fedpeft.core.states import State
from fedpeft.site import client_round
from fedpeft.site.learner import Learner, Update
from fedpeft.site.loop import moments, restore_moments

ALA_SHARE, ALA_PASSES, ALA_SETTLED = 0.8, 10, 0.01


@contextmanager
def held_near(learner: Learner, optimizer: torch.optim.Optimizer, anchor: State, strength: float) -> Iterator[None]:
    """Add `strength (w - anchor)` to the gradient of every step in this block."""
    parameters = learner.trainable.parameters()
    pairs = [(parameters[key], tensor) for key, tensor in anchor.items() if key in parameters]

    def pull(*_: Any) -> None:
        for parameter, tensor in pairs:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - tensor.to(parameter), alpha=strength)

    hook = optimizer.register_step_pre_hook(pull)
    try:
        yield
    finally:
        hook.remove()


class FedProx(Learner):
    """Local training is held near the global adapter."""

    strength = 0.01  # mu

    def fit(self, optimizer: torch.optim.Optimizer, round: int) -> dict[str, float]:
        anchor = {key: parameter.detach().clone() for key, parameter in self.trainable.parameters().items()}
        with held_near(self, optimizer, anchor, self.strength):
            return super().fit(optimizer, round)


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
        with held_near(self, optimizer, anchor, self.strength):
            losses = self.fit(optimizer, round)
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
        samples = self.batches.sample(
            int(ALA_SHARE * len(self.data.train)), derive(self.training.seed, "ala", self.site, round)
        )
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


PEERS: dict[str, Callable[..., Learner]] = {"fedprox": FedProx, "ditto": Ditto, "fedala": FedALA}

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""MOON: the features of a sample are drawn to the global model's, and away from the site's model of the round before.

    loss + mu mean_b -log( exp(sim(z, z_global) / tau) / (exp(sim(z, z_global) / tau) + exp(sim(z, z_before) / tau)) )

z are the features that the head reads, sim is the cosine. The paper has a projection of two layers in between; here the
backbone is pretrained. Both other models are this one with another adapter, so that a step takes two more forward
passes. A site's first round has no earlier model and no such term.

Source: Li et al. 2021, Model-Contrastive Federated Learning, https://arxiv.org/abs/2103.16257.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpeft.core.keys import without_head
from fedpeft.core.states import State
from fedpeft.methods.trainable import Part
from fedpeft.site.site_state import SiteState

if TYPE_CHECKING:
    from fedpeft.site.learner import Learner


def contrast(z: Tensor, z_global: Tensor, z_before: Tensor, temperature: float) -> Tensor:
    """Return the mean over samples of `-log(e^a / (e^a + e^b)) = softplus(b - a)`, a and b similarities over tau.

    Args:
        z: features (B, d) of the model that trains.
        z_global, z_before: those of the two others, (B, d).
        temperature: tau.
    """
    near, far = (F.cosine_similarity(z, other, dim=-1) for other in (z_global, z_before))
    return F.softplus((far - near) / temperature).mean()


@contextmanager
def contrasted(learner: Learner, near: State, own: SiteState | None) -> Iterator[None]:
    """Add the term to the loss in this block if `training.moon_mu` is set.

    Args:
        learner: of the site, with the start of the round in its model.
        near: the global adapter, by key.
        own: the site's state after its last round; None: this is its first one.
    """
    if not learner.training.moon_mu or own is None:
        yield
        return
    features, attributes = _Features(learner.answering.head), vars(learner.trainable)
    attributes["step"] = _Step(learner, without_head(near), own.adapter, features)
    try:
        yield
    finally:
        del attributes["step"]
        features.hook.remove()


class _Features:
    """The inputs of the head in the last pass."""

    def __init__(self, head: nn.Module) -> None:
        self.last = torch.empty(0)
        self.hook = head.register_forward_pre_hook(self._take)

    def _take(self, head: nn.Module, args: tuple[Any, ...]) -> None:
        self.last = args[0]


class _Step:
    """The method's step on parts with the term in their loss."""

    def __init__(self, learner: Learner, near: State, before: State, features: _Features) -> None:
        self._step, self._answering, self._features = learner.trainable.step, learner.answering, features
        self._mu, self._temperature = learner.training.moon_mu, learner.training.moon_temperature
        parameters = learner.trainable.parameters()
        self._parameters = {key: parameters[key] for key in near if key in parameters}
        self._others = [
            {key: state[key].to(parameter) for key, parameter in self._parameters.items()} for state in (near, before)
        ]

    def __call__(self, parts: Sequence[Part], optimizer: torch.optim.Optimizer) -> Tensor:
        references = [self._references(part) for part in parts]
        pairs = zip(parts, references, strict=True)
        return self._step([self._add_term(part, others) for part, others in pairs], optimizer)

    def _add_term(self, part: Part, others: Sequence[Tensor]) -> Part:
        def loss(logits: Tensor) -> Tensor:
            z_global, z_before = others
            term = contrast(self._features.last, z_global, z_before, self._temperature)
            return part.loss(logits) + self._mu * part.share * term

        return replace(part, loss=loss)

    @torch.no_grad()
    def _references(self, part: Part) -> list[Tensor]:
        """Return the features of a part by the global model and by the one before, without dropout."""
        own = {key: parameter.clone() for key, parameter in self._parameters.items()}
        training = self._answering.training
        self._answering.eval()
        found = []
        try:
            for state in self._others:
                self._load(state)
                part.forward()
                found.append(self._features.last)
        finally:
            self._load(own)
            self._answering.train(training)
        return found

    def _load(self, state: Mapping[str, Tensor]) -> None:
        for key, parameter in self._parameters.items():
            parameter.copy_(state[key])

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""F3OCUS at a site: score the importance of its layers, and measure how many fit into its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from fedpeft.client.answering.answering import Answering
from fedpeft.client.batches import Batch
from fedpeft.client.optimizer import KEPT_TENSORS
from fedpeft.importance import layer_budget, method_settings, score
from fedpeft.importance.settings import MemorySettings
from fedpeft.keys import layer_of, layers_of
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.states import State


def score_layers(
    answering: Answering,
    parameters: Mapping[str, nn.Parameter],
    batches: Sequence[Batch],
    settings: ScheduleSettings,
    *,
    seed: int,
    previous: State | None = None,
) -> list[float]:
    """Score each transformer layer that has trainable parameters, in the order of the layers.

    Args:
        answering: the current model, in evaluation mode.
        parameters: trainable parameters by wire key.
        batches: the samples to score on.
        settings: choose the score.
        seed: of random scores.
        previous: the same tensors after the site's last training, for a score that needs them; None before the
            first one. Then, and where none of them has changed since, that score is equal for all layers.
    """
    layers = _by_layer(parameters)
    extra = {}
    if getattr(method_settings(settings.score, settings.score_settings), "needs_previous", False):
        if previous is None or all(torch.equal(previous[key], tensor.cpu()) for key, tensor in parameters.items()):
            return [1 / len(layers)] * len(layers)
        # a state read from disk may have its keys in another order
        extra["previous"] = _by_layer({key: previous[key] for key in parameters})
    scores = score(
        lambda batch: answering(batch.inputs),
        layers,
        batches,
        _losses(answering),
        method=settings.score,
        generator=torch.Generator().manual_seed(seed),
        model=answering,
        **extra,
        **settings.score_settings,
    )
    return [float(value) for value in scores]


def measure_budget(
    answering: Answering, parameters: Mapping[str, nn.Parameter], batch: Batch, *, optimizer: str
) -> int:
    """How many transformer layers fit into the device's memory when training on batches of this size.

    Source: F3OCUS, supplement, Algorithm 46.
    """
    losses = _losses(answering)
    memory = MemorySettings(optimizer_tensors=KEPT_TENSORS[optimizer])
    return layer_budget(
        lambda rows: answering(rows.inputs), _by_layer(parameters), batch, losses, model=answering, settings=memory
    )


def _losses(answering: Answering) -> Callable[[torch.Tensor, Batch], torch.Tensor]:
    return lambda logits, batch: answering.loss(logits, batch.target, reduction="none")


def _by_layer(tensors: Mapping[str, torch.Tensor]) -> dict[int, list[torch.Tensor]]:
    return {n: [tensor for key, tensor in tensors.items() if layer_of(key) == n] for n in layers_of(tensors)}

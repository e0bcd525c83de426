# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The local training loop of one round, and the evaluation after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch

from fedpeft.client.answering.answering import Answering
from fedpeft.client.batches import Batch
from fedpeft.client.metrics import answer_accuracy
from fedpeft.errors import FedpeftError
from fedpeft.methods.trainable import Step


def train_epochs(
    answering: Answering,
    batches: Iterable[Batch],
    optimizer: torch.optim.Optimizer,
    rate: Callable[[int], float],
    *,
    first_step: int,
    epochs: int,
    device: torch.device,
    train_step: Step,
) -> dict[str, float]:
    """Train; return the mean loss of the first and of the last epoch.

    Args:
        answering: the site's model.
        batches: one pass over the training split each time it is iterated.
        optimizer: its groups hold the peak learning rates.
        rate: global step to factor of the peak learning rate.
        first_step: the global step at which this round begins.
        epochs: number of passes.
        device: of the model.
        train_step: the method's step on one batch (`fedpeft.methods.trainable.Trainable.step`).

    Raises:
        FedpeftError: the loss is not finite.
    """
    peaks = [group["lr"] for group in optimizer.param_groups]
    means, step = [], first_step
    for _ in range(epochs):
        total = count = 0.0
        for batch in batches:
            batch = batch.to(device)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * rate(step)
            loss = partial(answering.loss, target=batch.target)
            value = train_step(partial(answering, batch.inputs), loss, optimizer).item()
            if not math.isfinite(value):
                raise FedpeftError(
                    f"the training loss became {value} at step {step}: lower training.learning_rate ({max(peaks):g}).",
                    code="training-diverged",
                )
            total, count, step = total + value * len(batch.target), count + len(batch.target), step + 1
        means.append(total / count)
    return {"loss_first": means[0], "loss": means[-1]}


@torch.inference_mode()
def evaluate(answering: Answering, batches: Iterable[Batch], *, device: torch.device) -> dict[str, float | None]:
    """Accuracy over a split: overall, open, closed (None where the split has no such question)."""
    right, closed = [], []
    for batch in batches:
        right.append(answering.right(batch.to(device)))
        closed.append(batch.closed)
    return answer_accuracy(torch.cat(right), torch.cat(closed))


@torch.inference_mode()
def mean_loss(answering: Answering, batches: Iterable[Batch]) -> float:
    """Mean loss over the samples that have a target; infinity where it is not finite.

    Args:
        answering: the site's model.
        batches: on the model's device.
    """
    total = count = 0.0
    for batch in batches:
        counted = (batch.target >= 0).reshape(len(batch.target), -1).any(-1)
        losses = answering.loss(answering(batch.inputs), batch.target, reduction="sum")
        total, count = total + losses.item(), count + int(counted.sum())
    return total / count if count and math.isfinite(total) else math.inf

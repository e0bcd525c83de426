# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The local training loop of one round, and the evaluation after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import nn

from fedpeft.client.batches import Batch
from fedpeft.client.metrics import answer_accuracy
from fedpeft.errors import FedpeftError
from fedpeft.methods.trainable import Step

Forward = Callable[[dict[str, torch.Tensor]], torch.Tensor]


def train_epochs(
    forward: Forward,
    batches: Iterable[Batch],
    optimizer: torch.optim.Optimizer,
    rate: Callable[[int], float],
    *,
    first_step: int,
    epochs: int,
    device: torch.device,
    train_step: Step,
) -> dict[str, float]:
    """Train with cross-entropy; return the mean loss of the first and of the last epoch.

    Args:
        forward: the backbone's inputs to logits (B, C).
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
            loss = partial(nn.functional.cross_entropy, target=batch.target)
            value = train_step(partial(forward, batch.inputs), loss, optimizer).item()
            if not math.isfinite(value):
                raise FedpeftError(
                    f"the training loss became {value} at step {step}: lower training.learning_rate ({max(peaks):g}).",
                    code="training-diverged",
                )
            total, count, step = total + value * len(batch.target), count + len(batch.target), step + 1
        means.append(total / count)
    return {"loss_first": means[0], "loss": means[-1]}


@torch.inference_mode()
def evaluate(forward: Forward, batches: Iterable[Batch], *, device: torch.device) -> dict[str, float | None]:
    """Accuracy over a split: overall, open, closed (None where the split has no such question)."""
    right, closed = [], []
    for batch in batches:
        predicted = forward(batch.to(device).inputs).argmax(-1).cpu()
        right.append((predicted[:, None] == batch.accepted).any(-1))
        closed.append(batch.closed)
    return answer_accuracy(torch.cat(right), torch.cat(closed))


@torch.inference_mode()
def mean_loss(forward: Forward, batches: Iterable[Batch]) -> float:
    """Mean cross-entropy over the samples whose answer training has seen; infinity where it is not finite.

    Args:
        forward: the backbone's inputs to logits (B, C).
        batches: on the model's device.
    """
    total = count = 0.0
    for batch in batches:
        seen = batch.target >= 0
        losses = nn.functional.cross_entropy(forward(batch.inputs), batch.target, ignore_index=-1, reduction="sum")
        total, count = total + losses.item(), count + int(seen.sum())
    return total / count if count and math.isfinite(total) else math.inf

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The local training loop of one round, and the loss of a split."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch

from fedpeft.answering.answering import Answering
from fedpeft.answering.batches import Batch, Batches
from fedpeft.core.errors import FedpeftError
from fedpeft.methods.trainable import Part, Step

OnStep = Callable[[int, int], None]  # takes the steps of a round that are done, and all of them


def no_step(step: int, steps: int) -> None:
    """Take no note of a step."""


def train_epochs(
    answering: Answering,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    rate: Callable[[int], float],
    *,
    first_step: int,
    epochs: int,
    device: torch.device,
    train_step: Step,
    micro_batch: int = 0,
    on_step: OnStep = no_step,
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
        micro_batch: samples that are computed at once; 0: the whole batch.
        on_step: called after each step.

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
            value = train_step(parts_of(batch, answering, micro_batch), optimizer).item()
            if not math.isfinite(value):
                raise FedpeftError(
                    f"the training loss became {value} at step {step}: lower training.learning_rate ({max(peaks):g}).",
                    code="training-diverged",
                )
            total, count, step = total + value * len(batch.target), count + len(batch.target), step + 1
            on_step(step - first_step, epochs * len(batches))
        means.append(total / count)
    return {"loss_first": means[0], "loss": means[-1]}


def parts_of(batch: Batch, answering: Answering, micro_batch: int = 0) -> list[Part]:
    """Divide a batch into parts whose losses and gradients add up to those of the whole.

    Args:
        batch: on the model's device; every tensor of its inputs has one row for each sample.
        answering: the site's model.
        micro_batch: samples of a part, the last may have fewer; 0: all.

    Raises:
        FedpeftError: the inputs cannot be divided.
    """
    size = len(batch.target)
    if not 0 < micro_batch < size:
        whole, divergence = (partial(f, target=batch.target) for f in (answering.loss, answering.divergence))
        return [Part(partial(answering, batch.inputs), whole, divergence=divergence)]
    if other := [name for name, tensor in batch.inputs.items() if len(tensor) != size]:
        raise FedpeftError(
            f"micro_batch is {micro_batch}, and the input {other[0]!r} of this backbone has not one row for each "
            f"sample: leave it out.",
            setting="training.micro_batch",
        )
    counted = max(1, _counted(batch.target))
    parts = []
    for start in range(0, size, micro_batch):
        rows = slice(start, start + micro_batch)
        target = batch.target[rows]
        inputs = {name: tensor[rows] for name, tensor in batch.inputs.items()}
        loss, share = _part_of_mean(answering, target, counted), len(target) / size
        parts.append(Part(partial(answering, inputs), loss, share, partial(answering.divergence, target=target)))
    return parts


def _part_of_mean(answering: Answering, target: torch.Tensor, counted: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda logits: answering.loss(logits, target, reduction="sum") / counted


def _counted(target: torch.Tensor) -> int:
    """Return the number of samples that have a target."""
    return int((target >= 0).reshape(len(target), -1).any(-1).sum())


@torch.inference_mode()
def mean_loss(answering: Answering, batches: Iterable[Batch]) -> float:
    """Mean loss over the samples that have a target; infinity where it is not finite.

    Args:
        answering: the site's model.
        batches: on the model's device.
    """
    total = count = 0.0
    for batch in batches:
        losses = answering.loss(answering(batch.inputs), batch.target, reduction="sum")
        total, count = total + losses.item(), count + _counted(batch.target)
    return total / count if count and math.isfinite(total) else math.inf

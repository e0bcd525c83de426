# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Interface of a way to answer: a module from a batch's inputs to logits, its targets, its loss, and what is right.

Loss and outputs of answers that are read or written token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from fedpeft.answering.batches import Batch
from fedpeft.backbones.backbone import NO_TOKEN, Backbone
from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ACCURACY
from fedpeft.data.schema import Example
from fedpeft.methods import trainable


class Scored(NamedTuple):
    """An answer or label, and its probability."""

    text: str
    probability: float


class Answering(nn.Module):
    """A backbone with what makes answers of it.

    Attributes:
        metrics: by which it can be measured (`fedpeft.core.metrics`).
        labelled: whether it gives any number of labels in place of one answer.

    Args:
        backbone: frozen but for what the method trains.
        head: parameters that are trained in every round, and leave the site only where they are federated
            (`method.head`); a module without parameters if there are none.
    """

    metrics: ClassVar[tuple[str, ...]] = (ACCURACY,)
    labelled: ClassVar[bool] = False

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def collate(self, images: Sequence[Any], examples: Sequence[Example]) -> Batch:
        """Turn B examples with their opened images into a batch, on the CPU; runs in the processes that load data."""
        raise NotImplementedError

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the logits (B, ..., C) of a batch's inputs."""
        raise NotImplementedError

    def loss(self, logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
        """Return the loss of a batch.

        Args:
            logits: as `forward` returns them.
            target: of the batch; a sample whose numbers are all negative is left out.
            reduction: `mean` or `sum` over the samples, or `none`: one value for each (B,).
        """
        raise NotImplementedError

    def outputs(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return what the kernel of a layer score is taken of, (B, C).

        Args:
            logits: as `forward` returns them; here of one choice, (B, C), all of which count.
            target: of the batch, as for `loss`; that of one choice does not matter.
        """
        return logits

    def divergence(self, logits: Tensor, teacher: Tensor, target: Tensor) -> Tensor:
        """Return KL(teacher || logits) of the answers, mean over the batch, for a method that distills.

        Args:
            logits: as `forward` returns them; here of one choice, (B, C).
            teacher: of what teaches, of the same shape.
            target: of the batch, as for `loss`; that of one choice does not matter.

        Raises:
            FedpeftError: they are of another shape.
        """
        return trainable.kl_of_choices(logits, teacher)

    def chosen(self, batch: Batch) -> Tensor:
        """Return the number of each sample's most probable answer among those of training (B,), on the CPU."""
        raise NotImplementedError

    def probabilities(self, batch: Batch) -> Tensor:
        """Return the probability of each label for each sample (B, L)."""
        raise NotImplementedError

    def answers(self, batch: Batch, most: int) -> list[list[Scored]]:
        """Return each sample's most probable answers, the most probable first; of labels all of them.

        Args:
            batch: on the model's device; its target is not read.
            most: answers of a sample.

        Raises:
            FedpeftError: this way of answering does not say how probable its answers are.
        """
        raise FedpeftError(f"{type(self).__name__} does not say how probable its answers are: it lacks `answers`.")

    def pooled(self, inputs: dict[str, Tensor]) -> Tensor | None:
        """Return one vector for each sample (B, d), of which its answer is made; None: there is no such vector."""
        return None

    def unanswerable(self, examples: Sequence[Example]) -> int:
        """Return how many examples can never be answered right; they count as wrong."""
        raise NotImplementedError

    def right(self, batch: Batch) -> Tensor:
        """Return whether the model answers each sample with an accepted answer, booleans (B,) on the CPU."""
        raise NotImplementedError


def token_losses(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of each token (B, T), 0 behind an answer's end.

    Args:
        logits: (B, T, V).
        target: tokens (B, T), `NO_TOKEN` behind an answer's end.
    """
    return nn.functional.cross_entropy(logits.transpose(1, 2), target, ignore_index=NO_TOKEN, reduction="none")


def token_logits(logits: Tensor, target: Tensor) -> Tensor:
    """Return the logit of each of an answer's tokens (B, T), 0 behind its end; arguments as above."""
    chosen = logits.gather(-1, target.clamp_min(0)[..., None])[..., 0]
    return chosen.masked_fill(target == NO_TOKEN, 0)


def reduced(samples: Tensor, reduction: str) -> Tensor:
    """Return the `mean` or `sum` of the samples' losses (B,), or for `none` these."""
    if reduction == "none":
        return samples
    return samples.mean() if reduction == "mean" else samples.sum()

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Answering with labels: a head says for each label whether it applies; an image may have any number of them.

Training: binary cross-entropy, the mean over the labels that are known for an image and then over images. Data with
labels are answered in this way, whatever `training.answering` says of questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedpeft.answering.answering import Answering, Scored, reduced
from fedpeft.answering.batches import UNKNOWN, Batch
from fedpeft.answering.classification import best_first, build_head
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones.backbone import Backbone
from fedpeft.core.metrics import MACRO_F1
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example
from fedpeft.methods import divergences


class Multilabel(Answering):
    """Features (B, d) and a head to logits (B, L), one for each label."""

    metrics, labelled = (MACRO_F1,), True

    def __init__(self, backbone: Backbone, head: nn.Module, vocabulary: AnswerVocabulary) -> None:
        super().__init__(backbone, head)
        self.vocabulary = vocabulary

    def collate(self, images: Sequence[Any], examples: Sequence[Example]) -> Batch:
        """Make target 1 where a label applies, 0 where it does not, -1 where nobody knows, (B, L)."""
        target = torch.zeros(len(examples), len(self.vocabulary), dtype=torch.long)
        for row, example in enumerate(examples):
            target[row, [self.vocabulary.index(label) for label in example.labels or ()]] = 1
            target[row, [self.vocabulary.index(label) for label in example.unknown_labels]] = UNKNOWN
        return Batch(
            inputs=self.backbone.collate(list(images), [example.question for example in examples]),
            target=target,
            accepted=None,
            closed=torch.zeros(len(examples), dtype=torch.bool),
        )

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the logits (B, L)."""
        return self.head(self.backbone(**inputs))

    def pooled(self, inputs: dict[str, Tensor]) -> Tensor:
        """See `Answering`: the features that the head reads."""
        return self.backbone(**inputs)

    def loss(self, logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
        """Return the binary cross-entropy; an image without any known label is left out."""
        known = target != UNKNOWN
        each = nn.functional.binary_cross_entropy_with_logits(
            logits, target.clamp_min(0).to(logits.dtype), reduction="none"
        )
        samples = (each * known).sum(-1) / known.sum(-1).clamp_min(1)
        return reduced(samples[known.any(-1)] if reduction == "mean" else samples, reduction)

    def divergence(self, logits: Tensor, teacher: Tensor, target: Tensor) -> Tensor:
        """See `Answering`: of labels that apply or not each for itself, known or not."""
        return divergences.of_labels(logits, teacher)

    def probabilities(self, batch: Batch) -> Tensor:
        """Return the probability of each label (B, L)."""
        return self(batch.inputs).sigmoid()

    def answers(self, batch: Batch, most: int) -> list[list[Scored]]:
        """See `Answering`: all labels."""
        count = len(self.vocabulary)
        return [best_first(self.vocabulary.answers, row, count) for row in self.probabilities(batch).cpu()]

    def unanswerable(self, examples: Sequence[Example]) -> int:
        """Return 0: every label has an output."""
        return 0


def build(
    backbone: Backbone, vocabulary: AnswerVocabulary, settings: TrainingSettings, generator: torch.Generator
) -> Multilabel:
    """Build the head that `training.head` names."""
    head = build_head(settings.head, backbone.hidden_size, len(vocabulary), generator)
    return Multilabel(backbone, head, vocabulary)

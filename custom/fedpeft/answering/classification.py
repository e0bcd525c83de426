# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Answering by classification: a head tells the answers of the site's training data apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedpeft.answering.batches import Batch
from fedpeft.answering.choices import Choosing, accepted
from fedpeft.answering.heads import build_head
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones.backbone import Backbone
from fedpeft.core.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example


class Classification(Choosing):
    """Features (B, d) and a head to logits (B, C) over the answers; cross-entropy.

    Args:
        backbone: of the site.
        head: from features to logits.
        vocabulary: the C answers.
    """

    metrics = (ACCURACY, BALANCED_ACCURACY, MACRO_F1)

    def collate(self, images: Sequence[Any], examples: Sequence[Example]) -> Batch:
        """Make target the class of the answer (B,), -1 without one, accepted the classes that are right (B, A)."""
        inputs = self.backbone.collate(list(images), [example.question for example in examples])
        return Batch(
            inputs=inputs,
            target=torch.tensor([self.vocabulary.index(example.answer) for example in examples]),
            accepted=accepted(self.vocabulary, examples),
            closed=torch.tensor([example.closed for example in examples]),
        )

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the logits (B, C)."""
        return self.head(self.backbone(**inputs))

    def pooled(self, inputs: dict[str, Tensor]) -> Tensor:
        """See `Answering`: the features that the head reads."""
        return self.backbone(**inputs)

    def loss(self, logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
        """Return the cross-entropy."""
        return nn.functional.cross_entropy(logits, target, ignore_index=-1, reduction=reduction)

    def answer_scores(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the logits (B, C)."""
        return self(inputs)


def build(
    backbone: Backbone, vocabulary: AnswerVocabulary, settings: TrainingSettings, generator: torch.Generator
) -> Classification:
    """Build the head that `training.head` names."""
    head = build_head(settings.head, backbone.hidden_size, len(vocabulary), generator)
    return Classification(backbone, head, vocabulary)

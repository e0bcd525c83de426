# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Answering by a head with one output for each answer (`Classification`) or each label of an image (`Multilabel`).

The head does not leave the site's disk unless the job federates it. Images with labels are always answered by
`Multilabel`, whatever `training.answering` says. `Choosing` is also the base of ranked answers (`decoders.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fedpeft.answering.answering import UNKNOWN, Answering, Batch, Scored, reduced
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones.backbone import Backbone
from fedpeft.core.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example
from fedpeft.methods import trainable
from fedpeft.methods.first_values import Constant, FirstValues, Normal

INITIAL_STD = 0.02


def build_head(kind: str, hidden_size: int, classes: int, generator: torch.Generator) -> nn.Module:
    """Build a classifier from pooled features (B, d) to answers (B, C), weights N(0, 0.02^2), biases 0.

    `linear`, or `mlp`: Linear d-2d, LayerNorm, GELU, Linear 2d-C, the head of ViLT for VQA.
    """
    if kind == "linear":
        head = nn.Sequential(nn.Linear(hidden_size, classes))
    else:
        wide = 2 * hidden_size
        head = nn.Sequential(nn.Linear(hidden_size, wide), nn.LayerNorm(wide), nn.GELU(), nn.Linear(wide, classes))
    for layer in head:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=INITIAL_STD, generator=generator)
            nn.init.zeros_(layer.bias)
    return head


def first_values(key: str, shape: tuple[int, ...]) -> FirstValues:
    """Return how the first values of a tensor of the head are distributed, by its key in messages."""
    if key.endswith(".bias"):
        return Constant()
    return Normal(INITIAL_STD) if len(shape) > 1 else Constant(1.0)  # of the LayerNorm


def accepted(vocabulary: AnswerVocabulary, examples: Sequence[Example]) -> Tensor:
    """Return the numbers of the right answers of B examples (B, A), filled up with -1."""
    numbers = [torch.tensor(vocabulary.accepted(example), dtype=torch.long) for example in examples]
    return pad_sequence(numbers, batch_first=True, padding_value=-1)


def best_first(texts: Sequence[str], probabilities: Tensor, max_answers: int) -> list[Scored]:
    """Return the texts with the highest probabilities; of equal ones the first comes first."""
    order = probabilities.argsort(descending=True, stable=True)[:max_answers].tolist()
    return [Scored(texts[number], probabilities[number].item()) for number in order]


class VocabularyAnswering(Answering):
    """A way of answering with the answers or labels of a vocabulary."""

    def __init__(self, backbone: Backbone, head: nn.Module, vocabulary: AnswerVocabulary) -> None:
        super().__init__(backbone, head)
        self.vocabulary = vocabulary


class Choosing(VocabularyAnswering):
    """A way of answering that scores every answer of the vocabulary and chooses the best."""

    def answer_scores(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return a score for every answer (B, N), the higher the more probable."""
        raise NotImplementedError

    def chosen(self, batch: Batch) -> Tensor:
        """See `Answering`."""
        return self.answer_scores(batch.inputs).argmax(-1).cpu()

    def right(self, batch: Batch) -> Tensor:
        """Return whether the answer with the highest score is accepted, booleans (B,) on the CPU."""
        return (self.chosen(batch)[:, None] == batch.accepted).any(-1)

    def answers(self, batch: Batch, max_answers: int) -> list[list[Scored]]:
        """See `Answering`: the scores of all answers through a softmax; of equal ones the first comes first."""
        probabilities = self.answer_scores(batch.inputs).double().softmax(-1).cpu()
        return [best_first(self.vocabulary.answers, row, max_answers) for row in probabilities]

    def unanswerable(self, examples: Sequence[Example]) -> int:
        """Return how many examples have no accepted answer in the vocabulary."""
        return self.vocabulary.unseen(examples)


class HeadAnswering(VocabularyAnswering):
    """A head from the backbone's features (B, d) to logits (B, C), one for each answer or label."""

    def __init__(self, backbone: Backbone, head: nn.Module, vocabulary: AnswerVocabulary) -> None:
        super().__init__(backbone, head, vocabulary)
        self.register_buffer("weights", None, persistent=False)

    @classmethod
    def build(
        cls, backbone: Backbone, vocabulary: AnswerVocabulary, settings: TrainingSettings, generator: torch.Generator
    ) -> Self:
        """Build the head that `training.head` names."""
        return cls(backbone, build_head(settings.head, backbone.hidden_size, len(vocabulary), generator), vocabulary)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the logits (B, C)."""
        return self.head(self.backbone(**inputs))

    def pooled(self, inputs: dict[str, Tensor]) -> Tensor:
        """See `Answering`: the features that the head reads."""
        return self.backbone(**inputs)


class Classification(HeadAnswering, Choosing):
    """One logit for each answer; cross-entropy."""

    metrics = (ACCURACY, BALANCED_ACCURACY, MACRO_F1)

    def collate(self, images: Sequence[Any], examples: Sequence[Example]) -> Batch:
        """Return a batch with the class of the answer (B,), -1 without one, and the accepted classes (B, A)."""
        inputs = self.backbone.collate(list(images), [example.question for example in examples])
        return Batch(
            inputs=inputs,
            target=torch.tensor([self.vocabulary.index(example.answer) for example in examples]),
            accepted=accepted(self.vocabulary, examples),
            closed=torch.tensor([example.closed for example in examples]),
        )

    def loss(self, logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
        """Return the cross-entropy; with weights its mean is also over samples, so that parts of a batch add up."""
        if self.weights is None:
            return nn.functional.cross_entropy(logits, target, ignore_index=-1, reduction=reduction)
        samples = nn.functional.cross_entropy(logits, target, self.weights, ignore_index=-1, reduction="none")
        return reduced(samples[target >= 0] if reduction == "mean" else samples, reduction)

    def weigh(self, examples: Sequence[Example]) -> None:
        """See `Answering`: a class of n_c of n examples counts by n / (C n_c), C the classes that occur."""
        numbers = torch.tensor([self.vocabulary.index(example.answer) for example in examples], dtype=torch.long)
        counts = torch.bincount(numbers[numbers >= 0], minlength=len(self.vocabulary))
        seen = counts > 0
        self.weights = torch.where(seen, counts.sum() / (seen.sum() * counts.clamp_min(1)), 1.0)

    def answer_scores(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the logits (B, C)."""
        return self(inputs)


class Multilabel(HeadAnswering):
    """One logit for each label, of which any number may apply; binary cross-entropy."""

    metrics, labelled = (MACRO_F1,), True

    def collate(self, images: Sequence[Any], examples: Sequence[Example]) -> Batch:
        """Return a batch with target (B, L): 1 if a label applies, 0 if it does not, -1 if that is unknown."""
        return Batch(
            inputs=self.backbone.collate(list(images), [example.question for example in examples]),
            target=self._target(examples),
            accepted=None,
            closed=torch.zeros(len(examples), dtype=torch.bool),
        )

    def _target(self, examples: Sequence[Example]) -> Tensor:
        target = torch.zeros(len(examples), len(self.vocabulary), dtype=torch.long)
        for row, example in enumerate(examples):
            target[row, [self.vocabulary.index_of_label(label) for label in example.labels or ()]] = 1
            target[row, [self.vocabulary.index_of_label(label) for label in example.unknown_labels]] = UNKNOWN
        return target

    def loss(self, logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
        """Return the binary cross-entropy; an image without any known label is left out."""
        known = target != UNKNOWN
        each = nn.functional.binary_cross_entropy_with_logits(
            logits, target.clamp_min(0).to(logits.dtype), pos_weight=self.weights, reduction="none"
        )
        samples, counted = (each * known).sum(-1) / known.sum(-1).clamp_min(1), known.any(-1)
        if reduction != "mean":
            return reduced(samples, reduction)
        return reduced(samples[counted], reduction) if counted.any() else samples.sum()  # 0, as in micro batches

    def weigh(self, examples: Sequence[Example]) -> None:
        """See `Answering`: a label that applies is weighted by how many times more often it does not."""
        target = self._target(examples)
        positive, negative = (target == 1).sum(0), (target == 0).sum(0)
        occurs = (positive > 0) & (negative > 0)
        self.weights = torch.where(occurs, negative / positive.clamp_min(1), 1.0)

    def divergence(self, logits: Tensor, teacher: Tensor, target: Tensor) -> Tensor:
        """See `Answering`: the sum over all labels, known or not."""
        return trainable.kl_of_labels(logits, teacher)

    def probabilities(self, batch: Batch) -> Tensor:
        """Return the probability of each label (B, L)."""
        return self(batch.inputs).sigmoid()

    def answers(self, batch: Batch, max_answers: int) -> list[list[Scored]]:
        """See `Answering`: all labels."""
        count = len(self.vocabulary)
        return [best_first(self.vocabulary.answers, row, count) for row in self.probabilities(batch).cpu()]

    def unanswerable(self, examples: Sequence[Example]) -> int:
        """Return 0: every label has an output."""
        return 0


build, build_labels = Classification.build, Multilabel.build

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Answering by generation: the language model writes the answer, and nothing but the method's part is trained.

Training: cross-entropy of the answer's tokens, the mean over an answer's tokens and then over samples. Evaluation:
greedy decoding; an answer is right where its normal form is that of an accepted one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedpeft.answering.answering import Answering, Batch, Scored, reduced, token_logits, token_losses
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones.backbone import NO_TOKEN, Backbone, question_of, targets
from fedpeft.backbones.writing import Writer
from fedpeft.core.errors import FedpeftError
from fedpeft.data.answers import AnswerVocabulary, normalize
from fedpeft.data.schema import Example
from fedpeft.methods import trainable


class Generation(Answering):
    """A backbone that writes."""

    def __init__(self, backbone: Backbone, writer: Writer, longest: int) -> None:
        super().__init__(backbone, nn.Module())
        self.writer, self.longest = writer, longest

    def collate(self, images: Sequence[Any], examples: Sequence[Example]) -> Batch:
        """Make target the tokens of the answers (B, T), accepted the texts that are right."""
        answers = [example.answer for example in examples]
        inputs = self.writer.collate(list(images), [example.question for example in examples], answers)
        return Batch(
            inputs=inputs,
            target=targets(inputs),
            accepted=[{normalize(text) for text in (e.answer, *e.alternatives)} for e in examples],
            closed=torch.tensor([example.closed for example in examples]),
        )

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the logits (B, T, V) of the answers' tokens."""
        return self.writer(inputs)

    def loss(self, logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
        """Return the mean cross-entropy of an answer's tokens."""
        samples = token_losses(logits, target).sum(-1) / (target != NO_TOKEN).sum(-1)
        return reduced(samples, reduction)

    def outputs(self, logits: Tensor, target: Tensor) -> Tensor:
        """See `Answering`: the logit of each token of the answer (B, T), 0 behind its end."""
        return token_logits(logits, target)

    def divergence(self, logits: Tensor, teacher: Tensor, target: Tensor) -> Tensor:
        """See `Answering`: the mean over the tokens of an answer, as its loss is."""
        answered = target != NO_TOKEN
        return (trainable.kl_of_tokens(logits, teacher, answered) / answered.sum(-1)).mean()

    def right(self, batch: Batch) -> Tensor:
        """Compare what the model writes with the accepted answers."""
        written = self.writer.write(batch.inputs, self.longest)
        pairs = zip(written, batch.accepted, strict=True)
        return torch.tensor([bool(text.strip()) and normalize(text) in accepted for text, accepted in pairs])

    def answers(self, batch: Batch, max_answers: int) -> list[list[Scored]]:
        """See `Answering`: the one answer that the model writes, with the probability of its tokens."""
        written = [normalize(text) if text.strip() else "" for text in self.writer.write(batch.inputs, self.longest)]
        inputs = question_of(batch.inputs) | self.writer.answer_tokens(written, batch.target.device)
        losses = token_losses(self(inputs), targets(inputs)).sum(-1)
        return [
            [Scored(text, probability)] for text, probability in zip(written, (-losses).exp().tolist(), strict=True)
        ]

    def unanswerable(self, examples: Sequence[Example]) -> int:
        """Return 0: any answer can be written."""
        return 0


def build(
    backbone: Backbone, vocabulary: AnswerVocabulary, settings: TrainingSettings, generator: torch.Generator
) -> Generation:
    """Build the output layer of a backbone that can write."""
    make: Callable[[], Writer] | None = getattr(backbone, "writer", None)
    if make is None:
        raise FedpeftError(
            "answering is 'generation', and this backbone does not write text: set training.answering to "
            "'classification', or backbone.name to 'transformers' with a causal language model as source.",
            setting="training.answering",
            code="backbone-unusable",
        )
    writer = make()
    return Generation(backbone, writer, max(len(writer.tokens(answer)) for answer in vocabulary.answers))

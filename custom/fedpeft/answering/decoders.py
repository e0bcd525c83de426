# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Answering with a decoder, which writes the answer or ranks the answers of the site's training data.

Generation: the language model writes the answer, and nothing but the method's part is trained. Training: cross-entropy
of the answer's tokens, the mean over an answer's tokens and then over samples. Evaluation: greedy decoding; an answer
is right if its normal form is that of an accepted one.

Ranking, as ALBEF does: the decoder says how probable each answer is. Training: the negative log-probability of the
answer, summed over its tokens, the mean over samples. Evaluation: of the answers with the most probable first tokens,
the one with the highest log-probability.

Source: Li et al. 2021, Align before Fuse, section 5 (Visual Question Answering). Its code counts the first token twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedpeft.answering.answering import Answering, Batch, Scored, reduced
from fedpeft.answering.classification import Choosing, accepted
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones.backbone import ANSWER, ANSWER_MASK, NO_TOKEN, STATES, Backbone, Decoder, question_of, targets
from fedpeft.backbones.writing import Writer
from fedpeft.core.errors import FedpeftError
from fedpeft.data.answers import AnswerVocabulary, clean_text, normalize
from fedpeft.data.schema import Example
from fedpeft.methods import trainable


def token_losses(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy (B, T) of logits (B, T, V), 0 after an answer's end, where the target is `NO_TOKEN`."""
    return nn.functional.cross_entropy(logits.transpose(1, 2), target, ignore_index=NO_TOKEN, reduction="none")


class TokenAnswering(Answering):
    """A way of answering whose logits (B, T, V) are those of the tokens of an answer."""

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """See `Answering`: summed over the tokens of an answer, also if the loss is their mean."""
        return -token_losses(logits, target).sum(-1)

    def outputs(self, logits: Tensor, target: Tensor) -> Tensor:
        """See `Answering`: the logit of each token of the answer (B, T), 0 after its end."""
        chosen = logits.gather(-1, target.clamp_min(0)[..., None])[..., 0]
        return chosen.masked_fill(target == NO_TOKEN, 0)


class Generation(TokenAnswering):
    """A backbone that writes the answer."""

    def __init__(self, backbone: Backbone, writer: Writer, longest: int) -> None:
        super().__init__(backbone, nn.Module())
        self.writer, self.longest = writer, longest

    def collate(self, images: Sequence[Any], examples: Sequence[Example]) -> Batch:
        """Return a batch with the tokens of the answers (B, T) as target, and the accepted texts."""
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

    def divergence(self, logits: Tensor, teacher: Tensor, target: Tensor) -> Tensor:
        """See `Answering`: the mean over the tokens of an answer, as its loss is."""
        answered = target != NO_TOKEN
        return (trainable.kl_of_tokens(logits, teacher, answered) / answered.sum(-1)).mean()

    def right(self, batch: Batch) -> Tensor:
        """Compare what the model writes with the accepted answers."""
        pairs = zip(self._written(batch), batch.accepted, strict=True)
        return torch.tensor([bool(text) and text in accepted for text, accepted in pairs])

    def answers(self, batch: Batch, max_answers: int) -> list[list[Scored]]:
        """See `Answering`: the one answer that the model writes, with the probability of its tokens."""
        written = self._written(batch)
        inputs = question_of(batch.inputs) | self.writer.answer_tokens(written, batch.target.device)
        losses = token_losses(self(inputs), targets(inputs)).sum(-1)
        return [
            [Scored(text, probability)] for text, probability in zip(written, (-losses).exp().tolist(), strict=True)
        ]

    def _written(self, batch: Batch) -> list[str]:
        """Return what the model writes, normalized; empty if it is only blanks or characters without width."""
        written = self.writer.write(batch.inputs, self.longest)
        return [normalize(text) if clean_text(text).strip() else "" for text in written]

    def unanswerable(self, examples: Sequence[Example]) -> int:
        """Return 0: any answer can be written."""
        return 0


def build_generation(
    backbone: Backbone, vocabulary: AnswerVocabulary, settings: TrainingSettings, generator: torch.Generator
) -> Generation:
    """Build a way of answering with a backbone that can write."""
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


ROWS = 128  # answers in one pass through the decoder


class Ranking(TokenAnswering, Choosing):
    """A backbone with a decoder that ranks at most `candidates` of a site's answers; 0: all.

    Of answers with the same tokens, such as `x-ray` and `x ray`, only the first is ranked: it stands for the others.
    """

    backbone: Decoder
    ids: Tensor
    mask: Tensor
    distinct: Tensor

    def __init__(self, backbone: Decoder, vocabulary: AnswerVocabulary, candidates: int) -> None:
        super().__init__(backbone, nn.Module(), vocabulary)
        pool = backbone.answer_tokens(vocabulary.answers)
        self.register_buffer("ids", pool[ANSWER], persistent=False)
        self.register_buffer("mask", pool[ANSWER_MASK], persistent=False)
        first: dict[tuple[int, ...], int] = {}
        tokens = (pool[ANSWER] * pool[ANSWER_MASK]).tolist()
        self.first = torch.tensor([first.setdefault(tuple(row), number) for number, row in enumerate(tokens)])
        self.register_buffer("distinct", torch.tensor([*first.values()]), persistent=False)
        self.candidates = min(candidates or len(first), len(first))

    def collate(self, images: Sequence[Any], examples: Sequence[Example]) -> Batch:
        """Return a batch with the tokens of the answers (B, T) as target, and accepted places in the pool (B, A)."""
        answers = self.backbone.answer_tokens([example.answer for example in examples])
        numbers = accepted(self.vocabulary, examples)
        return Batch(
            inputs=self.backbone.collate(list(images), [example.question for example in examples]) | answers,
            target=targets(answers)[:, 1:],
            accepted=torch.where(numbers < 0, numbers, self.first[numbers]),
            closed=torch.tensor([example.closed for example in examples]),
        )

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the logits (B, T, V) of the answers' tokens."""
        return self.backbone(**inputs)

    def pooled(self, inputs: dict[str, Tensor]) -> Tensor:
        """See `Answering`: the mean of the states that the decoder reads, without padding."""
        states, seen = self.backbone(**question_of(inputs)), inputs["attention_mask"][..., None]
        return (states * seen).sum(1) / seen.sum(1)

    def loss(self, logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
        """Return the cross-entropy of the answers, summed over their tokens."""
        return reduced(token_losses(logits, target).sum(-1), reduction)

    def divergence(self, logits: Tensor, teacher: Tensor, target: Tensor) -> Tensor:
        """See `Answering`: summed over the tokens of an answer, as its loss is."""
        return trainable.kl_of_tokens(logits, teacher, target != NO_TOKEN).mean()

    @torch.no_grad()
    def answer_scores(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the log-probability of each answer of the pool (B, N); minus infinity if it was not ranked."""
        states, seen = self.backbone(**question_of(inputs)), inputs["attention_mask"]
        count, (pool, _) = len(states), self.ids.shape
        chosen = self.distinct.expand(count, -1)
        if self.candidates < len(self.distinct):
            begin = self.ids[:1, :2].expand(count, -1)
            first = self._logits(begin, torch.ones_like(begin), states, seen)[:, 0]
            chosen = self.distinct[first[:, self.ids[self.distinct, 1]].topk(self.candidates, dim=-1).indices]
        owners = torch.arange(count, device=states.device).repeat_interleave(self.candidates)
        parts = [
            self._sums(states[rows], seen[rows], answers)
            for rows, answers in zip(owners.split(ROWS), chosen.flatten().split(ROWS), strict=True)
        ]
        ranked = states.new_full((count, pool), -torch.inf)
        return ranked.scatter(1, chosen, torch.cat(parts).reshape(count, -1).to(ranked.dtype))

    def _sums(self, states: Tensor, seen: Tensor, answers: Tensor) -> Tensor:
        """Return the log-probabilities (n,) of n answers of the pool, one for each question."""
        ids, mask = self.ids[answers], self.mask[answers]
        tokens = self._logits(ids, mask, states, seen).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        return (tokens * mask[:, 1:]).sum(-1)

    def _logits(self, ids: Tensor, mask: Tensor, states: Tensor, seen: Tensor) -> Tensor:
        return self.backbone(**{ANSWER: ids, ANSWER_MASK: mask, STATES: states, "attention_mask": seen})


def build_ranking(
    backbone: Backbone, vocabulary: AnswerVocabulary, settings: TrainingSettings, generator: torch.Generator
) -> Ranking:
    """Build a ranking of the site's answers."""
    if not hasattr(backbone, "answer_tokens"):
        raise FedpeftError(
            "answering is 'ranking', and this backbone has no decoder to rank answers with: set training.answering to "
            "'classification', or backbone.name to 'albef-decoder'.",
            setting="training.answering",
            code="backbone-unusable",
        )
    return Ranking(cast(Decoder, backbone), vocabulary, settings.candidates)

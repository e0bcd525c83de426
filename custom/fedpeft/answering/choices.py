# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Answers that are chosen from a site's vocabulary: by their number, which is a class or a place in the pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fedpeft.answering.answering import Answering, Scored
from fedpeft.answering.batches import Batch
from fedpeft.backbones.backbone import Backbone
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example


def accepted(vocabulary: AnswerVocabulary, examples: Sequence[Example]) -> Tensor:
    """Return the numbers of the answers that are right for each of B examples (B, A), -1 where there are fewer."""
    numbers = [torch.tensor(vocabulary.accepted(example), dtype=torch.long) for example in examples]
    return pad_sequence(numbers, batch_first=True, padding_value=-1)


def best_first(texts: Sequence[str], probabilities: Tensor, most: int) -> list[Scored]:
    """Return the texts with the highest probabilities, of equal ones the first of them.

    Args:
        texts: N.
        probabilities: of each, (N,).
        most: texts that are returned.
    """
    order = probabilities.argsort(descending=True, stable=True)[:most].tolist()
    return [Scored(texts[number], probabilities[number].item()) for number in order]


class Choosing(Answering):
    """A way of answering that scores every answer of the vocabulary.

    Args:
        backbone, head: see `Answering`.
        vocabulary: the N answers.
    """

    def __init__(self, backbone: Backbone, head: nn.Module, vocabulary: AnswerVocabulary) -> None:
        super().__init__(backbone, head)
        self.vocabulary = vocabulary

    def answer_scores(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return a score for every answer (B, N), the higher the more probable."""
        raise NotImplementedError

    def chosen(self, batch: Batch) -> Tensor:
        """See `Answering`."""
        return self.answer_scores(batch.inputs).argmax(-1).cpu()

    def right(self, batch: Batch) -> Tensor:
        """Return whether the answer with the highest score is accepted, booleans (B,) on the CPU."""
        return (self.chosen(batch)[:, None] == batch.accepted).any(-1)

    def answers(self, batch: Batch, most: int) -> list[list[Scored]]:
        """See `Answering`: the scores of all answers through a softmax; of equal ones the first comes first."""
        probabilities = self.answer_scores(batch.inputs).double().softmax(-1).cpu()
        return [best_first(self.vocabulary.answers, row, most) for row in probabilities]

    def unanswerable(self, examples: Sequence[Example]) -> int:
        """Return how many examples have no accepted answer in the vocabulary."""
        return self.vocabulary.unseen(examples)

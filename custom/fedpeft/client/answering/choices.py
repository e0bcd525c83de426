# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Answers that are chosen from a site's vocabulary: by their number, which is a class or a place in the pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example


def accepted(vocabulary: AnswerVocabulary, examples: Sequence[Example]) -> Tensor:
    """Return the numbers of the answers that are right for each of B examples (B, A), -1 where there are fewer."""
    numbers = [torch.tensor(vocabulary.accepted(example), dtype=torch.long) for example in examples]
    return pad_sequence(numbers, batch_first=True, padding_value=-1)


def chosen_right(scores: Tensor, accepted: Tensor) -> Tensor:
    """Return whether the answer with the highest score is accepted, booleans (B,) on the CPU.

    Args:
        scores: of the N answers (B, N).
        accepted: as `accepted` returns them, (B, A).
    """
    return (scores.argmax(-1).cpu()[:, None] == accepted).any(-1)

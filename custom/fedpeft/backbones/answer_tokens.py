# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Answers as tokens of a batch, and what a backbone has that ranks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fedpeft.backbones.backbone import Backbone

if TYPE_CHECKING:
    from torch import Tensor

ANSWER, ANSWER_MASK = "answer_ids", "answer_mask"
STATES = "states"  # of questions about images, in the place of both
NO_TOKEN = -1  # in targets, behind the end of a shorter answer


class Decoder(Backbone, Protocol):
    """A backbone that says how probable an answer is, token by token: `training.answering: ranking`.

    Its batches may have the entries above. Called with answers it returns their logits (B, T - 1, V), 0 behind an
    answer's end; without answers the states of the questions (B, T', d).
    """

    def answer_tokens(self, answers: Sequence[str]) -> dict[str, Tensor]:
        """Return N answers as tokens, (N, T), and where they are, (N, T)."""


def targets(batch: dict[str, Tensor]) -> Tensor:
    """Return the answers' tokens (B, T), `NO_TOKEN` behind an answer's end."""
    return batch[ANSWER].masked_fill(batch[ANSWER_MASK] == 0, NO_TOKEN)


def question_of(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch without its answers."""
    return {name: tensor for name, tensor in batch.items() if name not in (ANSWER, ANSWER_MASK)}

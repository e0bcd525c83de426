# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""ALBEF that answers with its decoder: how probable is an answer, token by token, given image and question?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from fedpeft.backbones.albef import Albef, empty, load
from fedpeft.backbones.albef_decoder_model import AlbefDecoderModel
from fedpeft.backbones.albef_text import lengths, tokens
from fedpeft.backbones.answer_tokens import ANSWER, ANSWER_MASK, STATES
from fedpeft.backbones.registry import TINY_ALBEF_FOLDER

if TYPE_CHECKING:
    from fedpeft.backbones.settings import BackboneSettings


class AlbefDecoder(Albef):
    """An ALBEF with its answer decoder; see `Albef`."""

    family = "albef_decoder"
    answering = "ranking"

    def __init__(self, model: AlbefDecoderModel, tokenizer: Any, text_length: int) -> None:
        super().__init__(model, tokenizer, text_length)
        self.longest_answer: int = model.config.max_position_embeddings

    def answer_tokens(self, answers: Sequence[str]) -> dict[str, Tensor]:
        """Return N answers as tokens between [CLS] and [SEP], (N, T), and where they are, (N, T)."""
        ids, mask = tokens(self.tokenizer, answers, self.longest_answer, ends=True)
        return {ANSWER: ids, ANSWER_MASK: mask}

    def answer_lengths(self, answers: Sequence[str]) -> list[int]:
        """Return how many tokens each answer is, with [CLS] and [SEP]."""
        return lengths(self.tokenizer, answers, ends=True)

    def forward(self, **batch: Tensor) -> Tensor:
        """Return the logits (B, T - 1, V) of each token of answers, those before it given; 0 behind their ends.

        Args:
            batch: of `collate` and `answer_tokens`. Without answers, the states of the questions (B, T, d) are
                returned; given as `states` beside `attention_mask`, they take the place of question and image.
        """
        seen = batch["attention_mask"]
        states = batch.get(STATES)
        if states is None:
            states = self.model(batch["input_ids"], seen, batch["pixel_values"])
        if ANSWER not in batch:
            return states
        ids, mask = batch[ANSWER], batch[ANSWER_MASK]
        words = cast(AlbefDecoderModel, self.model).words(ids[:, :-1], mask[:, :-1], states, seen)
        return words * mask[:, 1:, None]


def build(settings: BackboneSettings, *, weights: bool = True) -> AlbefDecoder:
    """Load ALBEF with its decoder from a folder; see `fedpeft.backbones.albef.load`."""
    return AlbefDecoder(*load(settings, AlbefDecoderModel, decodes=True, weights=weights), settings.text_length)


def tiny_skeleton(source: str | None = None) -> AlbefDecoder:
    """Return the tiny ALBEF with its decoder, or another one, as `skeleton` does."""
    return skeleton(source or str(TINY_ALBEF_FOLDER))


def skeleton(source: str | None = None) -> AlbefDecoder:
    """Return an ALBEF with decoder, without weights and tokenizer, on torch's meta device."""
    model = empty(AlbefDecoderModel, source)
    return AlbefDecoder(model, None, model.config.max_position_embeddings)

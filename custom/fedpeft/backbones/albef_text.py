# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Questions and answers as ALBEF reads them: without punctuation, and as tokens.

A question is [CLS] and its words: the tokenizer of ALBEF's authors ends a single text with nothing, in pre-training as
in tuning. An answer has [SEP] at its end, which their code writes behind it as text: there the decoder ends.

Source: models/tokenization_bert.py, dataset/utils.py and dataset/vqa_dataset.py of github.com/salesforce/ALBEF.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

NO_PUNCTUATION = str.maketrans("-/", "  ", ",.'!?\"()*#:;~")


def plain(text: str) -> str:
    """Return a text in lower case without punctuation, as ALBEF was trained."""
    return re.sub(r"\s+", " ", text.lower().translate(NO_PUNCTUATION)).strip()


def tokens(tokenizer: Any, texts: Sequence[str], longest: int, *, ends: bool) -> tuple[Tensor, Tensor]:
    """Return B texts without punctuation as tokens, (B, T), and where they are, (B, T).

    Args:
        tokenizer: a BERT tokenizer.
        texts: questions or answers; padded to the longest of them.
        longest: tokens of one, [CLS] and [SEP] included; the words behind are cut.
        ends: whether [SEP] stands behind each.
    """
    begin, end = [tokenizer.cls_token_id], [tokenizer.sep_token_id] * ends
    most = longest - len(begin) - len(end)
    rows = [torch.tensor([*begin, *row[:most], *end]) for row in _words(tokenizer, texts)]
    ids = pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    return ids, pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)


def lengths(tokenizer: Any, texts: Sequence[str], *, ends: bool) -> list[int]:
    """Return how many tokens each text is before it is cut; see `tokens`."""
    return [1 + len(row) + ends for row in _words(tokenizer, texts)]


def _words(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    return tokenizer([plain(text) for text in texts], add_special_tokens=False, verbose=False)["input_ids"]

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a folder's tokenizer may make of a text: a few steps that each double it fill the memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
MOST_GROWTH = 2**10
GROWTH = {"ByteLevel": 2, "Precompiled": 32}  # a byte becomes a letter of two; one letter can stand for a word


def check_growth(tokenizer: Any) -> None:
    """Refuse a tokenizer whose steps together can make a text far longer; no text is read for this.

    Args:
        tokenizer: of transformers; one that is not from a tokenizer.json has no such steps.

    Raises:
        ValueError: with the growth.
    """
    backend, growth = getattr(tokenizer, "backend_tokenizer", None), 1
    for part in PARTS if backend is not None else ():
        step = getattr(backend, part)
        for entry in _steps(json.loads(step.__getstate__())) if step is not None else ():
            growth *= max(1, _growth(entry))
            if growth > MOST_GROWTH:
                raise ValueError(
                    f"its tokenizer.json has steps that make a text more than {MOST_GROWTH:,} times as long, at "
                    f"{entry.get('type')!s:.40} of its {part}: give the tokenizer of a whole checkpoint"
                )


def _growth(step: Mapping[str, Any]) -> int:
    """Return how many times as long a text can become by one step."""
    if step.get("type") == "Replace":
        between = not step.get("pattern", {}).get("String")  # a pattern can match between two letters
        return len(step.get("content", "")) + between
    if step.get("type") == "TemplateProcessing":
        return sum("Sequence" in piece for piece in step.get("single", ()))
    return GROWTH.get(str(step.get("type")), 1)


def _steps(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every step of a part, those of sequences among them."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            if "type" in value:
                yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value

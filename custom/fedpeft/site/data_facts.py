# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What must be equal when a site's state is read back: a digest of its answers and examples, and a few settings."""

from __future__ import annotations

import hashlib

from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example, SiteData

Facts = dict[str, str | int]


def facts_of(site: str, data: SiteData, vocabulary: AnswerVocabulary, *, backbone: str, seed: int) -> Facts:
    """Return what a state belongs to.

    Args:
        site: the site's name.
        data: of the site.
        vocabulary: its answers.
        backbone: name of the backbone.
        seed: of the training.
    """
    answers = hashlib.sha256("\n".join(vocabulary.answers).encode()).hexdigest()
    facts: Facts = {"site": site, "answers": answers, "examples": examples_digest(data), "backbone": backbone}
    return facts | {"train": len(data.train), "seed": seed}


def examples_digest(data: SiteData) -> str:
    """Return a digest of all examples without their images."""
    rows = [
        f"{split} {e.image_id} {e.question} {_target(e)}" for split, examples in data.splits().items() for e in examples
    ]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def _target(example: Example) -> str:
    if example.labels is None:
        return example.answer
    return f"{'|'.join(example.labels)} not {'|'.join(example.unknown_labels)}"

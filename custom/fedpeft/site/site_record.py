# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What is written beside a site's tensors: what they belong to, and what their model is."""

from __future__ import annotations

import hashlib
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example, SiteData
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
import fedpeft
from fedpeft import backbones
from fedpeft.site.site_state import Figures, ModelRecord
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.registry import is_procedural
from fedpeft.data.schema import SiteData


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


@dataclass(frozen=True, kw_only=True)
class SiteRecord:
    """What all rounds of a site have in common.

    Args:
        site: the site's name.
        data: its splits.
        dataset: registered name of the data set.
        vocabulary: what its head tells apart.
        backbone: name of the backbone.
        seed: of the training.
        sections: of the job; empty: there is none.
        window: through which the site's images are shown (`fedpeft.data.window`).
    """

    site: str
    data: SiteData
    dataset: str
    vocabulary: AnswerVocabulary
    backbone: str
    seed: int
    sections: Mapping[str, Any]
    window: Mapping[str, Any]

    def facts(self) -> Facts:
        """What must be equal when a state is read back."""
        return facts_of(self.site, self.data, self.vocabulary, backbone=self.backbone, seed=self.seed)

    def after(self, rounds: tuple[Figures, ...], *, thresholds: Sequence[float] | None, share: float) -> ModelRecord:
        """The model after a round.

        Args:
            rounds, thresholds, share: see `ModelRecord`.
        """
        return ModelRecord(
            site=self.site,
            fedpeft=fedpeft.__version__,
            sections=self.sections,
            answers=self.vocabulary.answers,
            labelled=bool(self.data.labels),
            asks=not self.data.labels and any(example.question for example in self.data.train),
            metric=self.data.metric,
            thresholds=None if thresholds is None else tuple(thresholds),
            share=share,
            window=self.window,
            procedural=is_procedural(self.dataset),
            tiny=backbones.is_tiny(self.backbone),
            source=self.data.source,
            samples={split: len(examples) for split, examples in self.data.splits().items()},
            rounds=rounds,
            spellings=self.data.spellings(),
        )

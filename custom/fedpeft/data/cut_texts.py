# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Questions, reports and answers of a site that are longer than its backbone reads or writes: their rest is cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fedpeft import backbones
from fedpeft.backbones import BACKBONES, Backbone, BackboneSettings
from fedpeft.data.schema import SiteData


def cut_texts_of(
    data: SiteData, settings: BackboneSettings, *, answers: bool = False, download: bool = False
) -> Iterator[str]:
    """Yield what `cut_texts` does, before the weights of a backbone are loaded.

    Args:
        data: of the site.
        settings: of the backbone.
        answers: whether answers are written or ranked word by word.
        download: whether the tokenizer may be fetched.

    Raises:
        FedpeftError: the tokenizer is missing, unreachable or damaged, or a setting does not fit.
    """
    if not BACKBONES.get(settings.name).reads_questions:
        return
    if backbone := backbones.prepared(settings, download=download):
        yield from cut_texts(data, backbone, answers=answers)


def cut_texts(data: SiteData, backbone: Backbone, *, answers: bool = False) -> Iterator[str]:
    """Yield a sentence where texts are longer than a backbone reads, or answers than it reads or writes.

    Args:
        data: of the site; no sentence shows a text.
        backbone: with its tokenizer; weights are not needed.
        answers: whether answers are written or ranked word by word.
    """
    examples = [example for split in data.splits().values() for example in split]
    yield from cut_questions((example.question for example in examples), backbone)
    if answers and not data.labels and (count := getattr(backbone, "answer_lengths", None)):
        written = Counter(example.answer for example in examples)
        lengths = dict(zip(written, count(list(written)), strict=True))
        read = backbone.longest_answer  # type: ignore[attr-defined]
        limit = read or max(lengths[example.answer] for example in data.train)
        if cut := sum(written[answer] for answer, length in lengths.items() if length > limit):
            why = (
                "that the model reads of one"
                if read
                else "of the longest of training, at which the model stops writing"
            )
            yield f"{cut:,} of {len(examples):,} answers are longer than the {limit} tokens {why}: shorten them."


def cut_questions(questions: Iterable[str], backbone: Backbone) -> Iterator[str]:
    """Yield a sentence where questions, or texts in their place, are longer than a backbone reads.

    Args:
        questions: of all examples; none is shown.
        backbone: see `cut_texts`.
    """
    texts = Counter(filter(None, questions))
    if not texts or not (count := getattr(backbone, "text_tokens", None)):
        return
    lengths = dict(zip(texts, count(list(texts)), strict=True))
    limit, longest = backbone.text_length, max(lengths.values())  # type: ignore[attr-defined]
    if cut := sum(texts[text] for text, length in lengths.items() if length > limit):
        yield (
            f"{cut:,} of {texts.total():,} texts are longer than backbone.text_length={limit} tokens and are cut "
            f"there, the longest has {longest:,}: {_remedy(backbone, limit, longest)}."
        )


def _remedy(backbone: Backbone, limit: int, longest: int) -> str:
    most = backbone.longest_text  # type: ignore[attr-defined]
    if most is None or longest <= most:
        return f"set it to {longest}"
    others = "shorten them, or choose another backbone.name"
    return others if most == limit else f"set it to {most}, the most that this model reads, or {others}"

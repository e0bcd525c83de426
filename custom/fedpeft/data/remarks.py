# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site should know about its own data before training: what was left out, what is unusual, what does not vary.

It also includes the figure that a model which has learned nothing would reach, to judge curves by, and how many texts
are longer than the backbone reads or writes. No sentence shows a text, an answer or a label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from fedpeft import backbones
from fedpeft.backbones import BACKBONES, Backbone, BackboneSettings
from fedpeft.core.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1
from fedpeft.data.answers import AnswerVocabulary, images_of_classes, normalize
from fedpeft.data.schema import Example, SiteData


def baseline(
    data: SiteData, *, min_images: int = 1, min_samples: int = 0, answers: Collection[str] = ()
) -> float | None:
    """Return the figure of a constant answer, a fraction; None: nothing can be measured.

    For accuracy and the macro-F1 of answers that is the most frequent answer of training, for balanced accuracy any one
    of its answers, for the macro-F1 of labels every label. `answers` are those of the head, if they are more than those
    of training. Means leave out answers, classes and labels of fewer than `min_images` test images, and are of at least
    `min_samples`.
    """
    if _count(data, min_images, answers) < min_samples:
        return None
    return (_OF_LABELS if data.labels else _OF_ANSWERS)[data.metric](data, min_images, answers)


def _count(data: SiteData, min_images: int, of_head: Collection[str]) -> int:
    """Return how many test samples a figure is of."""
    if data.labels:
        known = Counter(label for e in data.test for label in e.labels or () if label not in e.unknown_labels)
        counted = {label for label, count in known.items() if count >= min_images}
        return sum(not counted <= set(example.unknown_labels) for example in data.test)
    if data.metric == ACCURACY:
        return len(data.test)
    vocabulary = _vocabulary(data, of_head)
    return sum(_counted([e for e in data.test if vocabulary.accepted(e)], vocabulary.class_of, min_images).values())


def _accuracy(data: SiteData, min_images: int, of_head: Collection[str]) -> float:
    answer = _most_frequent(data)
    return sum(answer in answers for answers in _accepted(data)) / len(data.test)


def _most_frequent(data: SiteData) -> str:
    [(answer, _)] = Counter(sorted(normalize(example.answer) for example in data.train)).most_common(1)
    return answer


def _accepted(data: SiteData) -> list[set[str]]:
    return [{normalize(text) for text in (e.answer, *e.alternatives)} for e in data.test]


def _f1_of_answers(data: SiteData, min_images: int, of_head: Collection[str]) -> float | None:
    vocabulary = _vocabulary(data, of_head)
    answer, target = _most_frequent(data), [vocabulary.class_of(example) for example in data.test]
    chosen = [own if answer in accepted else answer for own, accepted in zip(target, _accepted(data), strict=True)]
    right = Counter(own for own, other in zip(target, chosen, strict=True) if own == other)
    counts, times = _counted(data.test, vocabulary.class_of, min_images), Counter(chosen)
    scores = [2 * right[own] / (count + times[own]) for own, count in counts.items()]
    return sum(scores) / len(scores) if scores else None


def _counted(examples: Sequence[Example], class_of: Callable[[Example], str], min_images: int) -> dict[str, int]:
    """Count the examples of each class that so many different images have."""
    images = images_of_classes((class_of(example), example.image_id) for example in examples)
    return {name: count for name, count in Counter(map(class_of, examples)).items() if images[name] >= min_images}


def _vocabulary(data: SiteData, of_head: Collection[str]) -> AnswerVocabulary:
    return AnswerVocabulary(of_head) if of_head else AnswerVocabulary.from_examples(data.train)


def _balanced_accuracy(data: SiteData, min_images: int, of_head: Collection[str]) -> float | None:
    classes = _counted(data.test, _vocabulary(data, of_head).class_of, min_images)
    if not classes:
        return None
    answers = of_head or {normalize(example.answer) for example in data.train}
    return 1 / len(classes) if classes.keys() & answers else 0.0


def _macro_f1(data: SiteData, min_images: int, of_head: Collection[str]) -> float | None:
    scores = []
    for label in data.labels:
        known = [example for example in data.test if label not in example.unknown_labels]
        count = sum(label in (example.labels or ()) for example in known)
        if count >= min_images:
            share = count / len(known)
            scores.append(2 * share / (1 + share))
    return sum(scores) / len(scores) if scores else None


_Baselines = dict[str, Callable[[SiteData, int, Collection[str]], float | None]]
_OF_LABELS: _Baselines = {MACRO_F1: _macro_f1}
_OF_ANSWERS: _Baselines = {ACCURACY: _accuracy, BALANCED_ACCURACY: _balanced_accuracy, MACRO_F1: _f1_of_answers}


def remarks(data: SiteData, **least: Any) -> Iterator[str]:
    """Yield sentences on what was left out, is unusual, or does not vary, for people at the site; nothing is sent.

    `least`: as of `baseline`.
    """
    for why, count in data.left_out:
        yield f"{count:,} left out: {why}."
    yield from data.notes
    yield from remarks_on_variety(data, **least)


def unread_questions(data: SiteData, backbone: str) -> Iterator[str]:
    """Yield a sentence where the data ask more than one question and the backbone reads none of them."""
    asked = {example.question for examples in data.splits().values() for example in examples if not data.labels}
    if len(asked) > 1 and not BACKBONES.get(backbone).reads_questions:
        yield (
            f"The data ask {len(asked):,} different questions and backbone {backbone!r} reads none of them, so that "
            f"every question about an image gets the same answer: choose another backbone.name (`fedpeft backbones`)."
        )


def remarks_on_variety(
    data: SiteData, *, min_images: int = 1, min_samples: int = 0, answers: Collection[str] = ()
) -> Iterator[str]:
    """Yield a sentence where a site has nothing to learn, or nothing to measure; for the numbers see `baseline`."""
    absent = len(data.labels) - data.answers_in_training
    if not data.labels:
        if data.answers_in_training == 1:
            yield "Training has one answer alone: the site trains, and its figure is that of the baseline."
    elif absent == len(data.labels):
        yield "No image of training has a label: the site trains, and learns to predict none."
    elif absent:
        yield f"{absent} of {len(data.labels)} labels are on no image of training."
    if baseline(data) is None:
        yield "No image of the test split has a label: the site trains, and its figure is not measured."
    elif baseline(data, min_images=min_images, answers=answers) is None:
        what = "label" if data.labels else "answer"
        yield f"No {what} is on {min_images} test images: the site trains, and its figure is not measured."
    elif baseline(data, min_images=min_images, min_samples=min_samples, answers=answers) is None:
        what = "labels" if data.labels else "answers"
        yield (
            f"Fewer than {min_samples} test samples are of {what} on {min_images} test images or more: the site "
            f"trains, and its figure is not measured."
        )


def cut_texts_of(
    data: SiteData, settings: BackboneSettings, *, answers: bool = False, download: bool = False
) -> Iterator[str]:
    """Yield the sentences of `cut_texts` before the weights of a backbone are loaded."""
    if not BACKBONES.get(settings.name).reads_questions:
        return
    if backbone := backbones.prepared(settings, download=download):
        yield from cut_texts(data, backbone, answers=answers)


def cut_texts(data: SiteData, backbone: Backbone, *, answers: bool = False) -> Iterator[str]:
    """Yield a sentence where texts are longer than a backbone reads, or answers longer than it reads or writes."""
    examples = [example for split in data.splits().values() for example in split]
    yield from cut_questions((example.question for example in examples), backbone)
    if answers and not data.labels and (count := getattr(backbone, "answer_lengths", None)):
        written = Counter(example.answer for example in examples)
        lengths = dict(zip(written, count(list(written)), strict=True))
        read = backbone.max_answer  # type: ignore[attr-defined]
        limit = read or max(lengths[example.answer] for example in data.train)
        if cut := sum(written[answer] for answer, length in lengths.items() if length > limit):
            why = (
                "that the model reads of one"
                if read
                else "of the longest of training, at which the model stops writing"
            )
            yield f"{cut:,} of {len(examples):,} answers are longer than the {limit} tokens {why}: shorten them."


def cut_questions(questions: Iterable[str], backbone: Backbone) -> Iterator[str]:
    """Yield a sentence where questions, or other texts, are longer than a backbone reads."""
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
    positions = backbone.max_text  # type: ignore[attr-defined]
    if positions is None or longest <= positions:
        return f"set it to {longest}"
    others = "shorten them, or choose another backbone.name"
    return others if positions == limit else f"set it to {positions}, the most that this model reads, or {others}"

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a model that has learned nothing would reach on a site's test split, to tell a flat curve from a good one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from fedpeft.core.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1
from fedpeft.data.answers import AnswerVocabulary, normalize
from fedpeft.data.schema import SiteData


def baseline(data: SiteData, *, least: int = 1) -> float | None:
    """Return the figure of the best constant answer, a fraction; None: nothing can be measured.

    Accuracy and the macro-F1 of answers: the most frequent answer of training. Balanced accuracy: any one class. The
    macro-F1 of labels: every label.

    Args:
        data: of the site.
        least: test images that an answer, class or label must have to count in a mean over these.
    """
    return (_OF_LABELS if data.labels else _OF_ANSWERS)[data.metric](data, least)


def _accuracy(data: SiteData, least: int) -> float:
    answer = _most_frequent(data)
    return sum(answer in answers for answers in _accepted(data)) / len(data.test)


def _most_frequent(data: SiteData) -> str:
    [(answer, _)] = Counter(sorted(normalize(example.answer) for example in data.train)).most_common(1)
    return answer


def _accepted(data: SiteData) -> list[set[str]]:
    return [{normalize(text) for text in (e.answer, *e.alternatives)} for e in data.test]


def _classes(data: SiteData) -> list[str]:
    vocabulary = AnswerVocabulary.from_examples(data.train)
    return [vocabulary.class_of(example) for example in data.test]


def _f1_of_answers(data: SiteData, least: int) -> float | None:
    answer, target = _most_frequent(data), _classes(data)
    chosen = [own if answer in accepted else answer for own, accepted in zip(target, _accepted(data), strict=True)]
    right = Counter(own for own, other in zip(target, chosen, strict=True) if own == other)
    counts, times = _counted(target, least), Counter(chosen)
    scores = [2 * right[own] / (count + times[own]) for own, count in counts.items()]
    return sum(scores) / len(scores) if scores else None


def _counted(answers: list[str], least: int) -> dict[str, int]:
    return {answer: count for answer, count in Counter(answers).items() if count >= least}


def _balanced_accuracy(data: SiteData, least: int) -> float | None:
    classes = len(_counted(_classes(data), least))
    return 1 / classes if classes else None


def _macro_f1(data: SiteData, least: int) -> float | None:
    scores = []
    for label in data.labels:
        known = [example for example in data.test if label not in example.unknown_labels]
        count = sum(label in (example.labels or ()) for example in known)
        if count >= least:
            share = count / len(known)
            scores.append(2 * share / (1 + share))
    return sum(scores) / len(scores) if scores else None


_Baselines = dict[str, Callable[[SiteData, int], float | None]]
_OF_LABELS: _Baselines = {MACRO_F1: _macro_f1}
_OF_ANSWERS: _Baselines = {ACCURACY: _accuracy, BALANCED_ACCURACY: _balanced_accuracy, MACRO_F1: _f1_of_answers}

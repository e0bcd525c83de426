# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a model that has learned nothing would reach on a site's test split, to tell a flat curve from a good one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from fedpeft.data.answers import normalize
from fedpeft.data.schema import SiteData
from fedpeft.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1


def baseline(data: SiteData) -> float | None:
    """Return the figure of the best constant answer, a fraction; None: nothing can be measured.

    Accuracy: the most frequent answer of training. Balanced accuracy: any one class. Macro-F1: every label.
    """
    return _BASELINES[data.metric](data)


def _accuracy(data: SiteData) -> float:
    [(answer, _)] = Counter(sorted(normalize(example.answer) for example in data.train)).most_common(1)
    accepted = [{normalize(text) for text in (e.answer, *e.alternatives)} for e in data.test]
    return sum(answer in answers for answers in accepted) / len(accepted)


def _balanced_accuracy(data: SiteData) -> float:
    return 1 / len({normalize(example.answer) for example in data.test})


def _macro_f1(data: SiteData) -> float | None:
    scores = []
    for label in data.labels:
        known = [example for example in data.test if label not in example.unknown_labels]
        share = sum(label in (example.labels or ()) for example in known) / max(1, len(known))
        if share:
            scores.append(2 * share / (1 + share))
    return sum(scores) / len(scores) if scores else None


_BASELINES: dict[str, Callable[[SiteData], float | None]] = {
    ACCURACY: _accuracy,
    BALANCED_ACCURACY: _balanced_accuracy,
    MACRO_F1: _macro_f1,
}

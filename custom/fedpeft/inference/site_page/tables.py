# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How each answer, class or label is recognized, and which are taken for which: tables of one site's test split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fedpeft.data.schema import Example
from fedpeft.inference.model import Prediction
from fedpeft.report.label_picture import counted_as
from fedpeft.report.labels import shorten
from fedpeft.report.table import SHADES, Table
from fedpeft.report.wording import DASH, percent

MOST_ROWS = 30
MOST_CONFUSED = 10
LONGEST = 28  # letters of an answer
OTHERS = "others"


def answered_as(prediction: Prediction) -> tuple[str, ...]:
    """Return the labels that were predicted, without those that are unknown, or the first answer.

    An accepted alternative counts as the answer that stands first.
    """
    example = prediction.example
    if prediction.applies is not None:
        return tuple(label for label in prediction.applies if label not in example.unknown_labels)
    text = prediction.answers[0].text if prediction.answers else ""
    return (example.answer if text in example.alternatives else text,)


def recognized(
    head: str, train: Sequence[Example], predictions: Sequence[Prediction], thresholds: Mapping[str, float]
) -> Table:
    """Return a row for each answer or label: how often it occurs, is predicted, and both at once.

    Args:
        head: "answer", "class" or "label".
        train: the training split.
        predictions: of the test split.
        thresholds: of labels.
    """
    labelled = any(prediction.applies is not None for prediction in predictions)
    in_training = Counter(name for example in train for name in _own(example))
    right, predicted, both = Counter[str](), Counter[str](), Counter[str]()
    for prediction in predictions:
        own, answers = _own(prediction.example), answered_as(prediction)
        right.update(own)
        predicted.update(answers)
        both.update(name for name in answers if name in own)
    occurring = right | predicted | (in_training if labelled else Counter())
    names = sorted(occurring, key=lambda name: (-right[name], -predicted[name], name))
    rows = []
    for name in names[:MOST_ROWS]:
        counts = (in_training[name], right[name], predicted[name])
        shares = _shares(both[name], predicted[name], right[name])
        threshold = (f"{thresholds[name]:.2f}",) if labelled else ()
        rows.append(
            (shorten(predictions[0].spelled(name), LONGEST), *map(str, counts), *map(percent, shares), *threshold)
        )
    columns = (head, "train", "test", "predicted", "precision (%)", "recall (%)", "F1 (%)")
    more = len(names) - len(rows)
    marks = [
        "Train, test: examples that have it",
        "precision: how many of those predicted have it, recall: how many of those that have it are predicted, "
        "F1: their harmonic mean",
        f"{DASH} none to count" * any(DASH in row for row in rows),
        f"{more:,} more occur less often in the test split" * bool(more),
    ]
    return Table(
        title=f"By {head}",
        columns=(*columns, "threshold") if labelled else columns,
        rows=tuple(rows),
        marks="; ".join(filter(None, marks)),
        averages=0,
    )


def confusion(head: str, predictions: Sequence[Prediction]) -> Table:
    """Return how many examples of each frequent answer or class get which; columns have the numbers of the rows.

    Args:
        head: "answer" or "class".
        predictions: of the test split, which has no labels.
    """
    pairs = Counter((p.example.answer, answered_as(p)[0]) for p in predictions)
    right = Counter(p.example.answer for p in predictions)
    names = [name for name, _ in sorted(right.items(), key=lambda item: (-item[1], item[0]))][:MOST_CONFUSED]
    places = {name: number for number, name in enumerate(names)}
    counts = [[0] * (len(names) + 1) for _ in range(len(names) + 1)]
    for (own, answer), count in pairs.items():
        counts[places.get(own, len(names))][places.get(answer, len(names))] += count
    numbers = [str(number) for number in range(1, len(names) + 1)]
    spelled = [shorten(predictions[0].spelled(name), LONGEST) for name in names]
    heads = [f"{number} {name}" for number, name in zip(numbers, spelled, strict=True)]
    shown = [(text, row) for text, row in zip([*heads, OTHERS], counts, strict=True) if any(row)]
    return Table(
        title="Confusion matrix",
        columns=(f"right {head}", *numbers, OTHERS),
        rows=tuple((text, *map(str, row)) for text, row in shown),
        marks=f"Test examples with the {head} of a row that get that of a column; darker: a larger part of the row"
        + f"; {OTHERS}: rarer ones together, so that its own field is no agreement" * (OTHERS in dict(shown)),
        averages=0,
        shades=tuple(tuple(_shade(count / sum(row)) for count in row) for _, row in shown),
    )


def _own(example: Example) -> Sequence[str]:
    return counted_as(example) if example.labels is None else example.labels


def _shares(both: int, predicted: int, right: int) -> tuple[float | None, ...]:
    precision = both / predicted if predicted else None
    recall = both / right if right else None
    return precision, recall, 2 * both / (predicted + right) if right else None


def _shade(share: float) -> int:
    return SHADES - 1 - min(SHADES - 1, int(SHADES * share))

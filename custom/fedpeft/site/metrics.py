# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Measure a site's model on a split, by the metric that its data declare (`fedpeft.core.metrics`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedpeft.answering.answering import UNKNOWN, Answering, Batch
from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1
from fedpeft.data.answers import AnswerVocabulary
from fedpeft.data.schema import Example

THRESHOLD = 0.5  # a label of this probability or more counts as predicted
Measured = dict[str, float | None]


class Measure:
    """Collects a model's answers to the batches of a split.

    Attributes:
        min_images: images of the split that a class or label must have to be part of a mean.
        min_samples: samples that a mean over answers or labels must be of; with fewer there is no figure.
        rare: numbers of the classes that have fewer images, though perhaps as many questions.
        unseen: classes of the split with as many images that training does not have.
        thresholds: of the labels, where they were chosen; None: one half, or there are no labels.
    """

    min_images = 1
    min_samples = 0
    rare: frozenset[int] = frozenset()
    unseen = 0
    thresholds: tuple[float, ...] | None = None

    def add(self, answering: Answering, batch: Batch) -> None:
        """Answer a batch, which is on the model's device."""
        raise NotImplementedError

    def recognized(self) -> dict[int, int]:
        """Return how many images of each class are recognized, by its number in training; only balanced accuracy."""
        return {}

    def tune(self, validation: Measure) -> None:
        """Choose the free values of a metric, if any; `validation` has the answers to the validation split."""

    def figures(self) -> Measured:
        """Return `overall`, the metric, and `open` and `closed`, all fractions; None: there is nothing to measure."""
        raise NotImplementedError


def _overall(value: float | None) -> Measured:
    return {"overall": value, "open": None, "closed": None}


class Accuracy(Measure):
    """Share of right answers: overall, and for open and closed questions.

    Source: FedPIA, Table 1 (open, closed, overall).
    """

    def __init__(self) -> None:
        self._right: list[Tensor] = []
        self._closed: list[Tensor] = []

    def add(self, answering: Answering, batch: Batch) -> None:
        """See `Measure`."""
        self._right.append(answering.right(batch))
        self._closed.append(batch.closed)

    def figures(self) -> Measured:
        """See `Measure`."""
        right, closed = torch.cat(self._right), torch.cat(self._closed)
        return {"overall": _mean(right), "open": _mean(right[~closed]), "closed": _mean(right[closed])}


def _numbers(answering: Answering, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the numbers of the chosen answers and of the right ones, (B,) each.

    The first accepted answer that training has is the right one, and every other accepted answer counts as that one.
    """
    chosen, target = answering.chosen(batch), batch.target.cpu()
    if batch.accepted is None or not batch.accepted.shape[1]:
        return chosen, target
    accepted = batch.accepted.cpu()
    return torch.where((chosen[:, None] == accepted).any(-1), accepted[:, 0], chosen), accepted[:, 0]


class _AnswerNumbers(Measure):
    """A mean of one value for each answer of the split; the value is 0 where training does not have the answer."""

    def __init__(self) -> None:
        self._chosen: list[Tensor] = []
        self._target: list[Tensor] = []

    def add(self, answering: Answering, batch: Batch) -> None:
        """See `Measure`."""
        chosen, target = _numbers(answering, batch)
        self._chosen.append(chosen)
        self._target.append(target)

    def _joined(self) -> tuple[Tensor, Tensor]:
        return torch.cat(self._chosen), torch.cat(self._target)

    def _mean_over_answers(self, values: Tensor, counts: Tensor) -> Measured:
        """Average the values of the answers that enough images have; number 0 is not an answer of training."""
        enough = counts[1:] >= self.min_images
        enough[[number for number in self.rare if 0 <= number < len(enough)]] = False
        counted = values[1:][enough]
        if counts[1:][enough].sum() < self.min_samples:
            return _overall(None)
        return _overall(_mean_of(counted.tolist() + [0.0] * self.unseen))


class BalancedAccuracy(_AnswerNumbers):
    """Mean over the classes of the split of the share of their images that are recognized."""

    def recognized(self) -> dict[int, int]:
        """See `Measure`."""
        chosen, target = self._joined()
        return dict(enumerate(target[chosen == target].bincount().tolist()))

    def figures(self) -> Measured:
        """See `Measure`."""
        from torchmetrics.functional.classification import multiclass_stat_scores

        chosen, target = (numbers + 1 for numbers in self._joined())
        classes = max(2, 1 + int(torch.maximum(chosen, target).max()))
        counts = multiclass_stat_scores(chosen, target, num_classes=classes, average="none")
        right, *_, support = counts.T
        return self._mean_over_answers(right.double() / support.clamp_min(1), support)


class AnswersF1(_AnswerNumbers):
    """Mean over the answers of the split of their F1, 2 tp / (2 tp + fp + fn): one answer against all others.

    The first accepted answer that training has is the right one, and every other accepted answer counts as that one.
    """

    def figures(self) -> Measured:
        """See `Measure`."""
        chosen, target = (numbers + 1 for numbers in self._joined())
        answers = 1 + int(torch.maximum(chosen, target).max())
        count = target.bincount(minlength=answers)
        right = target[chosen == target].bincount(minlength=answers)
        scores = 2 * right.double() / (count + chosen.bincount(minlength=answers)).clamp_min(1)
        return self._mean_over_answers(scores, count)


class MacroF1(Measure):
    """Mean over the labels that occur in the split of their F1, a label predicted from its threshold on.

    The thresholds are 0.5, those with the highest F1 on the validation split, or `thresholds_by_share`. An image does
    not count for a label that is unknown for it.
    """

    def __init__(self) -> None:
        self._probabilities: list[Tensor] = []
        self._target: list[Tensor] = []

    def add(self, answering: Answering, batch: Batch) -> None:
        """See `Measure`."""
        self._probabilities.append(answering.probabilities(batch).cpu())
        self._target.append(batch.target.cpu())

    def tune(self, validation: Measure) -> None:
        """See `Measure`: the threshold of each label, 0.5 for one that no image of the validation split has."""
        assert isinstance(validation, MacroF1)
        probabilities, target = torch.cat(validation._probabilities), torch.cat(validation._target)
        pairs = zip(probabilities.T, target.T, strict=True)
        self.thresholds = tuple(best_threshold(*pair).item() for pair in pairs)

    def f1_by_label(self) -> list[float | None]:
        """Return the F1 of each label; None: no image of the split has it."""
        from torchmetrics.functional.classification import binary_stat_scores

        probabilities, target = torch.cat(self._probabilities), torch.cat(self._target)
        predicted = (probabilities >= probabilities.new_tensor(self.thresholds or (THRESHOLD,))).int()
        columns = zip(predicted.T, target.T, strict=True)  # one label is enough, and the multi-label function wants two
        counts = [binary_stat_scores(*column, ignore_index=UNKNOWN).tolist() for column in columns]
        return [
            2 * right / (2 * right + wrong + missed) if support >= self.min_images else None
            for right, wrong, _, missed, support in counts
        ]

    def figures(self) -> Measured:
        """See `Measure`."""
        scores = self.f1_by_label()
        counted = torch.tensor([score is not None for score in scores])
        known = (torch.cat(self._target)[:, counted] != UNKNOWN).any(dim=1).sum()
        return _overall(None if known < self.min_samples else _mean_of([s for s in scores if s is not None]))


def thresholds_by_share(
    vocabulary: AnswerVocabulary, train: Sequence[Example], weights: Sequence[float] | None = None
) -> tuple[float, ...]:
    """Return p / (1 + p) of each label that a share p of the training images has, 0.5 where none has it.

    Where probabilities are right, the threshold with the highest F1 is half of that F1. Predicting a label everywhere
    has an F1 of 2 p / (1 + p), so that no lower threshold is better. An image does not count for a label that is
    unknown for it. With a weight w of a label that applies, the loss has its lowest value at w q / (w q + 1 - q) for a
    probability q, and the threshold is moved there too.

    Source: Lipton, Elkan and Naryanaswamy 2014, arXiv:1402.1892.
    """
    present = Counter(vocabulary.index(label) for example in train for label in example.labels or ())
    unknown = Counter(vocabulary.index(label) for example in train for label in example.unknown_labels)
    counts = [(present[number], len(train) - unknown[number]) for number in range(len(vocabulary))]
    shares = [found / (known + found) if found else THRESHOLD for found, known in counts]
    return tuple(w * t / (w * t + 1 - t) for w, t in zip(weights or [1.0] * len(shares), shares, strict=True))


def best_threshold(probabilities: Tensor, target: Tensor) -> Tensor:
    """Return the threshold for a label with the highest F1, the highest one of equally good ones.

    Args:
        probabilities: of the label, (n,).
        target: 1 where the label applies, 0 where it does not, -1 where it is unknown, (n,).
    """
    known = target != UNKNOWN
    order = probabilities[known].argsort(descending=True, stable=True)
    sorted_, applies = probabilities[known][order], target[known][order]
    if not applies.any():
        return probabilities.new_tensor(THRESHOLD)
    scores = 2 * applies.cumsum(0) / (torch.arange(1, len(applies) + 1) + applies.sum())
    last_of_equal = torch.cat([sorted_[1:] < sorted_[:-1], torch.tensor([True])])
    return sorted_[torch.where(last_of_equal, scores, -1.0).argmax()]


MEASURES_OF_LABELS: dict[str, type[Measure]] = {MACRO_F1: MacroF1}
MEASURES_OF_ANSWERS: dict[str, type[Measure]] = {
    ACCURACY: Accuracy,
    BALANCED_ACCURACY: BalancedAccuracy,
    MACRO_F1: AnswersF1,
}


def new_measure(metric: str, *, labelled: bool) -> Measure:
    """Return an empty measure of one of `fedpeft.core.metrics`; labelled images have any number of labels."""
    return (MEASURES_OF_LABELS if labelled else MEASURES_OF_ANSWERS)[metric]()


def check_metric(name: str, answering: Answering) -> None:
    """Refuse a metric that a way of answering cannot be measured by."""
    if name not in answering.metrics:
        raise FedpeftError(
            f"these data are measured by {name}, and this way of answering only by "
            f"{' and '.join(answering.metrics)}: set another training.answering, or leave data.metric out.",
            setting="training.answering",
        )


@torch.inference_mode()
def measured(
    answering: Answering,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    metric: str,
    min_images: int = 1,
    min_samples: int = 0,
    rare: frozenset[int] = frozenset(),
    unseen: int = 0,
) -> Measure:
    """Answer all questions of a split; for `min_images`, `min_samples`, `rare` and `unseen` see `Measure`."""
    measure = new_measure(metric, labelled=answering.labelled)
    measure.min_images, measure.min_samples, measure.rare, measure.unseen = min_images, min_samples, rare, unseen
    for batch in batches:
        measure.add(answering, batch.to(device))
    return measure


def _mean(values: Tensor) -> float | None:
    return _mean_of(values.tolist())


def _mean_of(values: Sequence[float]) -> float | None:
    """Return the mean, rounded far beyond what counts say, so that equal figures of two rounds are equal."""
    return round(math.fsum(values) / len(values), 12) if values else None

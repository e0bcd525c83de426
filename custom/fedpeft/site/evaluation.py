# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Measure a site's model on its own test and validation splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedpeft.site import computing
from fedpeft.answering.batches import Batches
from fedpeft.site.metrics import Measure, Measured, measured
from fedpeft.site.site_model import SiteModel
from fedpeft.data.schema import Example, SiteData
from fedpeft.core.metrics import VALIDATION


class Evaluation:
    """How a site's model is measured by the metric of its data.

    Args:
        model: as it is at the time of each measurement.
        data: the site's splits.
        batches: from examples and a batch size to batches.
        least: test images that a class or label must have to count.

    Attributes:
        tested: what the last round answered to the test split; None before the first one.
    """

    def __init__(
        self, model: SiteModel, data: SiteData, batches: Callable[[Sequence[Example], int], Batches], *, least: int
    ) -> None:
        self._model, self._data, self._batches, self._least = model, data, batches, least
        training = model.training
        self.tested: Measure | None = None
        self._tunes = training.thresholds == VALIDATION and bool(data.validation)
        self._validates = training.validate and bool(data.validation)

    def of_round(self) -> tuple[Measured, tuple[float, ...] | None]:
        """Return the figures of a round, of the test split and where wanted of the validation split, and thresholds.

        Thresholds that are chosen on the validation split flatter its own figure, in every round alike.
        """
        test, validation = self._answered(self._data.test), None
        if self._tunes or self._validates:
            validation = self._answered(self._data.validation)
        if self._tunes and validation:
            test.tune(validation)
            validation.tune(validation)
        wanted = validation if self._validates else None
        figures = test.figures() | {VALIDATION: wanted.figures()["overall"] if wanted else None}
        self.tested = test
        return figures, test.thresholds

    def of(self, examples: Sequence[Example]) -> Measure:
        """Answer examples, with the thresholds that a round would have."""
        measure = self._answered(examples)
        if self._tunes:
            measure.tune(self._answered(self._data.validation))
        return measure

    def _answered(self, examples: Sequence[Example]) -> Measure:
        model = self._model
        with computing.as_trained(model.backbone, model.training, model.features):
            return measured(
                model.answering.eval(),
                self._batches(examples, model.training.evaluation_batch_size),
                device=model.device,
                metric=self._data.metric,
                least=self._least,
                unseen=self._data.unseen_classes(model.vocabulary, examples, least=self._least),
            )

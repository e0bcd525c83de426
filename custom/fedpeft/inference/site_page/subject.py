# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a page is about: a site's data, what its model answers to the test split, and the features of that split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.core.seeds import derive
from fedpeft.data.schema import Example, SiteData
from fedpeft.inference.examples import own_data, split_of
from fedpeft.inference.kept_model import KeptModel
from fedpeft.inference.model import Prediction, Predictor
from fedpeft.inference.predict_command import answered
from fedpeft.inference.site_page.feature_map import features
from fedpeft.site.metrics import Measured

if TYPE_CHECKING:
    from fedpeft.core.console import Console

MOST_POINTS = 1000


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A site's model on its own data.

    Args:
        kept: the model.
        data: of the site, as the job chose them.
        predictions: of the test split.
        figures: of it.
        thresholds: of labels, by label.
        mapped: examples of the test split, at most MOST_POINTS, drawn by a fixed seed.
        features: of these, (n, d); None: there is no one vector for an example.
        remarks: lines for the user.
    """

    kept: KeptModel
    data: SiteData
    predictions: tuple[Prediction, ...]
    figures: Measured
    thresholds: dict[str, float]
    mapped: tuple[Example, ...]
    features: np.ndarray | None
    remarks: tuple[str, ...] = ()


def subject_of(kept: KeptModel, *, console: Console) -> Subject:
    """Answer the test split, and compute its features.

    Raises:
        FedpeftError: data or backbone cannot be read.
    """
    data = own_data(kept)
    test = split_of(data, "test", kept)
    predictor = Predictor(kept)
    predictions, figures = answered(predictor, test, most=1, console=console)
    assert figures  # all answers are known
    mapped = tuple(data.test[place] for place in _drawn(len(data.test)))
    return Subject(
        kept=kept,
        data=data,
        predictions=tuple(predictions),
        figures=figures,
        thresholds=predictor.thresholds,
        mapped=mapped,
        features=features(predictor, mapped),
        remarks=test.remarks,
    )


def _drawn(count: int) -> list[int]:
    if count <= MOST_POINTS:
        return list(range(count))
    return sorted(np.random.default_rng(derive(0, "inspect")).choice(count, MOST_POINTS, replace=False).tolist())

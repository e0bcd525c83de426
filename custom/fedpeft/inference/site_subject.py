# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Compute the content of a site's page: what its model answers to the test split, and the features of that split.

In a map of features examples that the model finds alike are near each other (t-SNE, by scikit-learn).

Source: van der Maaten and Hinton 2008, Visualizing Data using t-SNE; F3OCUS shows such maps of its clients.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedpeft.core.seeds import derive
from fedpeft.data.schema import Example, SiteData
from fedpeft.inference.commands import answered
from fedpeft.inference.examples import own_data, split_of
from fedpeft.inference.kept_model import KeptModel
from fedpeft.inference.predictor import Prediction, Predictor
from fedpeft.site import computing
from fedpeft.site.metrics import Measured

if TYPE_CHECKING:
    from fedpeft.core.console import Console


MIN_EXAMPLES = 8  # with fewer a map says nothing
PERPLEXITY = 30.0
COMPONENTS = 50  # principal ones, in which neighbors are searched, as the authors do
SEED = 0
MAX_POINTS = 1000


@torch.inference_mode()
def features(predictor: Predictor, examples: Sequence[Example]) -> np.ndarray | None:
    """Return the vector that each example's answer is computed from, (n, d); None: there is no such vector."""
    model, rows = predictor.model, []
    with computing.shortcuts(model.backbone, model.training, model.features):
        for batch in predictor.batches(examples):
            pooled = model.answering.eval().pooled(batch.to(model.device).inputs)
            if pooled is None:
                return None
            rows.append(pooled.float().cpu())
    return torch.cat(rows).numpy()


def has_projection() -> bool:
    """Return whether scikit-learn is installed."""
    return importlib.util.find_spec("sklearn") is not None


def differ(vectors: np.ndarray) -> bool:
    """Return whether vectors are finite and not all equal; scikit-learn's t-SNE ends the process if they are equal."""
    return bool(np.isfinite(vectors).all() and (vectors != vectors[0]).any())


def projected(vectors: np.ndarray) -> np.ndarray:
    """Return MIN_EXAMPLES or more vectors (n, d) that `differ` as points of a plane (n, 2), the same on one machine."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    count, width = vectors.shape
    main = PCA(min(COMPONENTS, count, width), random_state=SEED).fit_transform(vectors.astype(np.float64))
    perplexity = min(PERPLEXITY, (count - 1) / 3)
    return TSNE(2, perplexity=perplexity, init="pca", random_state=SEED).fit_transform(main)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A site's model on its own data."""

    kept: KeptModel
    data: SiteData  # of the site, as the job chose them
    predictions: tuple[Prediction, ...]  # of the test split
    figures: Measured  # on the test split
    thresholds: dict[str, float]  # of labels, by label
    mapped: tuple[Example, ...]  # examples of the test split, at most MAX_POINTS, drawn by a fixed seed
    features: np.ndarray | None  # of `mapped`, (n, d); None: an example has no one vector
    remarks: tuple[str, ...] = ()  # lines for the user


def subject_of(kept: KeptModel, *, console: Console) -> Subject:
    """Answer the test split, and compute its features."""
    data = own_data(kept)
    test = split_of(data, "test", kept)
    predictor = Predictor(kept)
    predictions, figures = answered(predictor, test, max_answers=1, console=console)
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
    if count <= MAX_POINTS:
        return list(range(count))
    return sorted(np.random.default_rng(derive(0, "inspect")).choice(count, MAX_POINTS, replace=False).tolist())

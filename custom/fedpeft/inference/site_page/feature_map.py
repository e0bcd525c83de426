# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A map of features: examples that the model holds for alike lie near each other (t-SNE, by scikit-learn).

Source: van der Maaten and Hinton 2008, Visualizing Data using t-SNE; F3OCUS shows such maps of its clients.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import numpy as np
import torch

from fedpeft.data.schema import Example
from fedpeft.inference.model import Predictor
from fedpeft.site import computing

LEAST = 8  # examples of which a map says something
PERPLEXITY = 30.0
COMPONENTS = 50  # principal ones, of which the neighbors are found, as the authors do
SEED = 0


@torch.inference_mode()
def features(predictor: Predictor, examples: Sequence[Example]) -> np.ndarray | None:
    """Return one vector for each example, (n, d), of which its answer is made; None: there is no such vector."""
    model, rows = predictor.model, []
    with computing.as_trained(model.backbone, model.training, model.features):
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
    """Return whether vectors are finite and not all equal; scikit-learn's t-SNE ends the process where they are."""
    return bool(np.isfinite(vectors).all() and (vectors != vectors[0]).any())


def projected(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (n, d) as points of a plane, (n, 2); the same on one machine every time.

    Args:
        vectors: at least LEAST, which `differ`.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    count, width = vectors.shape
    main = PCA(min(COMPONENTS, count, width), random_state=SEED).fit_transform(vectors.astype(np.float64))
    perplexity = min(PERPLEXITY, (count - 1) / 3)
    return TSNE(2, perplexity=perplexity, init="pca", random_state=SEED).fit_transform(main)

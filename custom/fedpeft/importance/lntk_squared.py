# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""F3OCUS's Algorithm 1 as printed: the largest eigenvalue of the sum of squared gradients of all logits.

    G = sum_b sum_i (d logit[b, i] / d W)^2, viewed as (out, -1)        lambda_1(G G^T)        for every tensor W

This is not the tangent kernel of the paper's text (see `lntk`): squaring loses the signs, and G G^T compares output
neurons instead of samples. The algorithm scores named tensors, one by one; a layer's score is their sum.

Source: Saha et al., F3OCUS (CVPR 2025), supplement, Algorithm 1 and Table 7 (a bias is viewed as (out, 1)).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpeft.importance.eigen import principal_eigenvalue_of_rows
from fedpeft.importance.saliency import squared_gradients
from fedpeft.importance.scoring_task import ScoringTask
from fedpeft.importance.settings import LayerSum


def lntk_squared(task: ScoringTask, settings: LayerSum) -> Tensor:
    """Return the sum (or mean) over the layer's tensors of lambda_1(G G^T), (L,) float64."""
    squares, _ = squared_gradients(task, target="logits")
    values = {
        id(p): principal_eigenvalue_of_rows(squares[id(p)].reshape(len(p) if p.ndim else 1, -1))
        for p in task.parameters
    }
    scores = torch.tensor([sum(values[id(p)] for p in group) for group in task.layers.values()], dtype=torch.float64)
    if settings.reduce == "mean":
        scores = scores / torch.tensor([len(group) for group in task.layers.values()])
    return scores

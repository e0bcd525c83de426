# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Gradient signal preservation: what removing a weight would take from the gradient's norm.

    S = sum theta * (H g)        g = dL/dtheta,  H g = d (g . g') / dtheta with g' = g held fixed

Signed: a negative layer is one whose weights slow the descent.

Source: Wang, Zhang & Grosse 2020, Picking Winning Tickets Before Training by Preserving Gradient Flow, equation 8
(theirs is the negative, kept small).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedpeft.importance.saliency import gradients, mean_gradients, over_layers
from fedpeft.importance.scoring_task import ScoringTask
from fedpeft.importance.settings import LayerSum


def grasp(task: ScoringTask, settings: LayerSum) -> Tensor:
    """Return `sum theta * (H g)` by double backward, (L,) float64."""
    batches = task.needs_batches()
    total = {id(p): torch.zeros_like(p) for p in task.parameters}
    samples = 0
    with sdpa_kernel(SDPBackend.MATH):  # fused attention cannot be differentiated twice
        fixed = list(mean_gradients(task).values()) if len(batches) > 1 else None
        for batch in batches:
            losses = task.losses(batch)
            samples += len(losses)
            own = gradients(losses.sum(), task, create_graph=True)
            held = [g.detach() / len(losses) for g in own] if fixed is None else fixed
            product = sum((g * h).sum() for g, h in zip(own, held, strict=True))
            for p, second in zip(task.parameters, gradients(product, task), strict=True):
                total[id(p)] += second
    values = {id(p): p.detach() * total[id(p)] / samples for p in task.parameters}
    return over_layers(task, values, settings.reduce)

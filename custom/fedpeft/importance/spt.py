# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Sensitivity-aware selection: how many of the model's most sensitive parameters a layer has.

    s = sum_b g_b^2        S^l = number of the layer's parameters among the tau * p largest s of all layers

Source: He et al. 2023, Sensitivity-Aware Visual Parameter-Efficient Fine-Tuning, section 3.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpeft.importance.saliency import over_layers, squared_gradients
from fedpeft.importance.scoring_task import ScoringTask
from fedpeft.importance.settings import SPTSettings


def spt(task: ScoringTask, settings: SPTSettings) -> Tensor:
    """Return the count (or, for the mean, share) of sensitive parameters in every layer, (L,) float64."""
    squares, _ = squared_gradients(task, target="loss")
    sensitivities = torch.cat([squares[id(p)].flatten() for p in task.parameters])
    count = max(1, round(settings.tau * len(sensitivities)))
    sensitive = torch.zeros_like(sensitivities)
    sensitive[sensitivities.topk(count).indices] = 1
    # topk treats a NaN as the largest value: keep it visible instead
    sensitive = torch.where(torch.isfinite(sensitivities), sensitive, torch.nan)
    parts = sensitive.split([p.numel() for p in task.parameters])
    return over_layers(task, dict(zip(map(id, task.parameters), parts, strict=True)), settings.reduce)

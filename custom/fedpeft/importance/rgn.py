# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Relative gradient norm: how large a layer's gradient is against its weights.

    S^l = mean over the layer's tensors of ||g||_2 / ||theta||_2

Tensors that are all zero, as fresh biases are, have no such ratio and are left out; `norms="layer"` takes one ratio
over all numbers of the layer instead, which counts their gradients too.

Source: Lee et al. 2023, Surgical Fine-Tuning Improves Adaptation to Distribution Shifts (Auto-RGN).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpeft.core.errors import FedpeftError
from fedpeft.importance.saliency import mean_gradients
from fedpeft.importance.scoring_task import ScoringTask
from fedpeft.importance.settings import RGNSettings


def rgn(task: ScoringTask, settings: RGNSettings) -> Tensor:
    """Return the relative gradient norm of every layer, (L,) float64.

    Raises:
        FedpeftError: a layer's parameters are all zero.
    """
    gradients = mean_gradients(task)
    squares = {
        id(p): (float(gradients[id(p)].double().square().sum()), float(p.detach().double().square().sum()))
        for p in task.parameters
    }
    scores = []
    for number, group in enumerate(task.layers.values()):
        pairs = [squares[id(p)] for p in group]
        if settings.norms == "layer":
            pairs = [(sum(g for g, _ in pairs), sum(theta for _, theta in pairs))]
        ratios = [(g / theta) ** 0.5 for g, theta in pairs if theta > 0]
        if not ratios:
            raise FedpeftError(
                f"{task.name(number)} has only zeros, so its gradient has no relative norm: use another method."
            )
        scores.append(sum(ratios) / len(ratios))
    return torch.tensor(scores, dtype=torch.float64)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A score: the largest weight of a layer, whatever the data."""

import torch

from fedpeft.importance.scoring_task import ScoringTask


def grown(task: ScoringTask) -> torch.Tensor:
    """`max |theta|` of every layer, (L,) float64."""
    largest = [max(float(p.detach().abs().max()) for p in group) for group in task.layers.values()]
    return torch.tensor(largest, dtype=torch.float64)

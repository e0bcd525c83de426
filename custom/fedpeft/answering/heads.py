# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Build a site's classifier, which does not leave the site's disk unless the job federates it."""

from __future__ import annotations

import torch
from torch import nn

from fedpeft.methods.first_values import Constant, FirstValues, Normal

INITIAL_STD = 0.02


def build_head(kind: str, hidden_size: int, classes: int, generator: torch.Generator) -> nn.Module:
    """Build a classifier from pooled features (B, d) to answers (B, C), weights N(0, 0.02^2), biases 0.

    Args:
        kind: `linear`, or `mlp` (Linear d-2d, LayerNorm, GELU, Linear 2d-C, the head of ViLT for VQA).
        hidden_size: d.
        classes: C, the size of the site's answer vocabulary.
        generator: for the initial weights.
    """
    if kind == "linear":
        head = nn.Sequential(nn.Linear(hidden_size, classes))
    else:
        wide = 2 * hidden_size
        head = nn.Sequential(nn.Linear(hidden_size, wide), nn.LayerNorm(wide), nn.GELU(), nn.Linear(wide, classes))
    for layer in head:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=INITIAL_STD, generator=generator)
            nn.init.zeros_(layer.bias)
    return head


def first_values(key: str, shape: tuple[int, ...]) -> FirstValues:
    """Return how the first values of such a head's tensor are distributed, by its key in messages."""
    if key.endswith(".bias"):
        return Constant()
    return Normal(INITIAL_STD) if len(shape) > 1 else Constant(1.0)  # of the LayerNorm

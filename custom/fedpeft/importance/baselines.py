# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Peers that use neither the model nor the data."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpeft.core.errors import FedpeftError
from fedpeft.importance.scoring_task import ScoringTask


def fd(task: ScoringTask) -> Tensor:
    """Return uniform random scores, so that the best layers are a random subset (federated dropout); (L,) float64.

    Raises:
        FedpeftError: `generator` is missing.

    Source: Wen et al. 2022, Federated Dropout; Caldas et al. 2018, Expanding the Reach of Federated Learning by
    Reducing Client Resource Requirements.
    """
    if task.generator is None:
        raise FedpeftError("fd draws its scores at random: pass generator=torch.Generator().manual_seed(number).")
    return torch.rand(len(task.layers), generator=task.generator, dtype=torch.float64)


def last_k(task: ScoringTask) -> Tensor:
    """Return `S^l = l + 1`, so that the K best layers are the last K; (L,) float64."""
    return torch.arange(1, len(task.layers) + 1, dtype=torch.float64)


def first_k(task: ScoringTask) -> Tensor:
    """Return `S^l = L - l`, so that the K best layers are the first K; (L,) float64."""
    return torch.arange(len(task.layers), 0, -1, dtype=torch.float64)

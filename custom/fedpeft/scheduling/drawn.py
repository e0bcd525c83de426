# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Layers drawn at random, the same for all clients: stochastic block attention draws one in each round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpeft.scheduling.front import Archive, Front
from fedpeft.scheduling.problem import Problem, take_top


@dataclass(frozen=True, kw_only=True)
class DrawnSettings:
    """``drawn`` has no settings: how many layers are drawn is the budget."""

    scored: ClassVar[bool] = False  # no client computes scores for it


def search(task: Problem, rng: np.random.Generator, settings: DrawnSettings) -> Front:
    """Draw an order of the layers; every client trains the first of it, as many as its budget.

    Source: the federated parameter-efficient tuning of vision transformers, stochastic block attention (SBA).
    """
    archive = Archive(task)
    lots = np.broadcast_to(rng.random(task.scores.shape[1]), task.scores.shape)
    archive.evaluate(take_top(lots, task.budgets)[None])
    return archive.front()

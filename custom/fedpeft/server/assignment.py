# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""F3OCUS: assign the layers that each site trains in a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpeft.protocol.reply_contract import check_scores
from fedpeft.scheduling import choose, schedule
from fedpeft.scheduling.settings import OWN, ScheduleSettings


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The layers that each site trains in a round, with the scores of the layers `numbers` that led to it, if any."""

    numbers: list[int]
    layers: dict[str, list[int]]
    scores: dict[str, list[float]]
    importance: float | None
    variance: float


def assign(
    scores: Mapping[str, Sequence[float]],
    budgets: Mapping[str, int],
    layers: Sequence[int],
    settings: ScheduleSettings,
    *,
    seed: int,
) -> Assignment:
    """Schedule the layers of a round.

    Args:
        scores: by site, one non-negative score for each of `layers`; none where the solver weighs none.
        budgets: by site, how many layers it may train.
        layers: numbers of the transformer layers with trainable parameters.
        settings: solver, its settings, and the two weights.
        seed: of the solver.

    Raises:
        FedpeftError: a site's scores are not finite, negative or of the wrong number; names the site.
    """
    sites = sorted(scores)
    for site in sites:
        check_scores(scores[site], len(layers) if settings.scored else 0, site)
    none = np.zeros((len(sites), len(layers)))
    table = np.array([scores[site] for site in sites], dtype=np.float64) if settings.scored else none  # (N, L)
    counts = np.array([min(budgets[site], len(layers)) for site in sites])
    if settings.solver == OWN:
        mask = np.zeros(table.shape, dtype=bool)
        for row, (values, count) in enumerate(zip(table, counts, strict=True)):
            mask[row, np.argsort(-values, kind="stable")[:count]] = True
    else:
        front = schedule(table, counts, solver=settings.solver, seed=seed, **settings.solver_settings)
        mask = choose(front, settings.weight_importance, settings.weight_diversity)
    return Assignment(
        numbers=list(layers),
        layers={site: [layers[int(i)] for i in np.flatnonzero(row)] for site, row in zip(sites, mask, strict=True)},
        scores={site: [float(value) for value in scores[site]] for site in sites if scores[site]},
        importance=float((table * mask).sum()) if settings.scored else None,
        variance=float(mask.sum(axis=0).var()),
    )

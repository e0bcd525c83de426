# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Plan a round: which sites take part, which score their layers, and which layers each site trains (F3OCUS).

It also decides when no further round is needed, because sites no longer improve on their validation splits
(`training.patience`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpeft.core.metrics import VALIDATION
from fedpeft.core.seeds import derive
from fedpeft.protocol.reply_contract import check_scores
from fedpeft.scheduling import choose, schedule
from fedpeft.scheduling.settings import OWN, ScheduleSettings


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The layers that each site trains in a round, and the scores of the layers `numbers` that led to it, if any."""

    numbers: list[int]
    layers: dict[str, list[int]]
    scores: dict[str, list[float]]
    importance: float | None
    variance: float


ROUNDED = 0.01  # tolerance: sites send three digits of scores that sum to 1


def assign(
    scores: Mapping[str, Sequence[float]],
    budgets: Mapping[str, int],
    layers: Sequence[int],
    settings: ScheduleSettings,
    *,
    seed: int,
) -> Assignment:
    """Schedule the layers of a round, within each site's budget.

    `layers` are the numbers of the layers with trainable parameters. A site has one non-negative score for each, or
    none if the solver uses no scores; the error of a wrong score names the site. A site's scores are divided by their
    sum if that is not 1, as with noise: else they would outweigh all others.
    """
    sites = sorted(scores)
    for site in sites:
        check_scores(scores[site], len(layers) if settings.scored else 0, site)
    none = np.zeros((len(sites), len(layers)))
    table = np.array([scores[site] for site in sites], dtype=np.float64) if settings.scored else none  # (N, L)
    sums = table.sum(axis=1, keepdims=True)
    table = np.divide(table, sums, out=table.copy(), where=(sums > 0) & (np.abs(sums - 1) > ROUNDED))
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
        scores={site: row.tolist() for site, row in zip(sites, table, strict=True) if scores[site]},
        importance=float((table * mask).sum()) if settings.scored else None,
        variance=float(mask.sum(axis=0).var()),
    )


Scores = dict[str, list[float]]


class RoundPlanner:
    """Plans rounds for FLARE's controller, the pool and a federation in one process.

    Args:
        schedule: see `ScheduleSettings`.
        budgets: by site, the layers that it may train; its keys are the sites.
        layers: numbers of the transformer layers with trainable parameters.
        seed: of the job.
        scores: the last scores of each site, if the job resumes from a checkpoint.
    """

    def __init__(
        self,
        schedule: ScheduleSettings,
        *,
        budgets: Mapping[str, int],
        layers: Sequence[int],
        seed: int,
        scores: Mapping[str, list[float]] | None = None,
    ) -> None:
        self._schedule, self._budgets, self._layers, self._seed = schedule, dict(budgets), list(layers), seed
        self.scores: Scores = dict(scores or {})

    def participants(self, round: int) -> list[str]:
        """Return the sites of a round; drawn at random from the seed if not all take part."""
        return self._schedule.participants(round, list(self._budgets), seed=self._seed)

    def begins(self, round: int, site: str) -> bool:
        """Return whether a site joins in this round, with its own initial adapter instead of the global one."""
        return self._schedule.joins_in(round, site)

    def due(self, round: int, sites: Sequence[str]) -> list[str]:
        """Return the sites that must score their layers before this round; none if nothing is scored."""
        if not self._schedule.scored:
            return []
        return [site for site in sites if self._schedule.scores_in(round) or site not in self.scores]

    def assignment(self, round: int, sites: Sequence[str]) -> Assignment | None:
        """Return the layers that each of these sites trains; None without a schedule: every site trains all."""
        if not self._schedule.active:
            return None
        return assign(
            {site: self.scores[site] if self._schedule.scored else [] for site in sites},
            {site: self._budgets[site] for site in sites},
            self._layers,
            self._schedule,
            seed=derive(self._seed, "schedule", round),
        )


FiguresBySite = Mapping[str, Mapping[str, float | None]]


def median_figures(rounds: Iterable[FiguresBySite]) -> list[float | None]:
    """Return for each round the median over all sites so far of their latest figure on the validation split.

    A site that takes no part in a round counts with its earlier figure; a site that never reports one does not count.
    None: no site has reported a figure yet.
    """
    latest: dict[str, float] = {}
    medians: list[float | None] = []
    for sites in rounds:
        latest |= _reported(sites)
        medians.append(statistics.median(latest.values()) if latest else None)
    return medians


def best_before_end(rounds: Sequence[FiguresBySite], patience: int) -> int | None:
    """Return the number of the best round if the last `patience` rounds have brought nothing better; else None.

    The median must not have risen, and fewer than half of the sites may have a figure above all of their own earlier
    ones. If no site has figures from before and since, because others were drawn, nothing is known. A single site can
    move the median between the figures of the others, so it does not decide alone. With a patience of 0 a job never
    ends early.
    """
    measured = {number: median for number, median in enumerate(median_figures(rounds), 1) if median is not None}
    if not patience or not measured:
        return None
    best = max(measured, key=lambda number: (measured[number], -number))
    if len(rounds) - best < patience:
        return None
    improved = _improved(rounds[:-patience], rounds[-patience:])
    return best if improved and 2 * sum(improved) < len(improved) else None


def _improved(before: Iterable[FiguresBySite], since: Iterable[FiguresBySite]) -> list[bool]:
    """Return, for each site that reported in both, whether its best figure since is above its best before."""
    earlier, later = _best(before), _best(since)
    return [later[site] > figure for site, figure in earlier.items() if site in later]


def _best(rounds: Iterable[FiguresBySite]) -> dict[str, float]:
    best: dict[str, float] = {}
    for sites in rounds:
        best |= {site: max(value, best.get(site, value)) for site, value in _reported(sites).items()}
    return best


def _reported(sites: FiguresBySite) -> dict[str, float]:
    return {site: value for site, one in sites.items() if (value := one.get(VALIDATION)) is not None}

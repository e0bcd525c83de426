# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Plan a round: which sites take part, which score their layers, and which layers each site trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedpeft.core.seeds import derive
from fedpeft.scheduling.settings import ScheduleSettings
from fedpeft.server.assignment import Assignment, assign

Scores = dict[str, list[float]]


class RoundPlanner:
    """Plans rounds for FLARE's controller and for a federation in one process.

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
        """The sites of a round; drawn at random from the seed if not all take part."""
        return self._schedule.participants(round, list(self._budgets), seed=self._seed)

    def begins(self, round: int, site: str) -> bool:
        """Whether a site joins with this round, from its own initial adapter instead of the global one."""
        return site in self._schedule.joins and round == self._schedule.first_round(site)

    def due(self, round: int, sites: Sequence[str]) -> list[str]:
        """The sites that must score their layers before this round; none where nothing is scored."""
        if not self._schedule.scored:
            return []
        return [site for site in sites if self._schedule.scores_in(round) or site not in self.scores]

    def assignment(self, round: int, sites: Sequence[str]) -> Assignment | None:
        """The layers that each of these sites trains; None without a schedule, where every site trains all.

        Raises:
            FedpeftError: scores are invalid; names the site.
        """
        if not self._schedule.active:
            return None
        return assign(
            {site: self.scores[site] if self._schedule.scored else [] for site in sites},
            {site: self._budgets[site] for site in sites},
            self._layers,
            self._schedule,
            seed=derive(self._seed, "schedule", round),
        )

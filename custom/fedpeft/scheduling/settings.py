# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The `schedule` section of a job: which sites take part in a round, and which layers each may train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpeft import importance, scheduling
from fedpeft.core.errors import FedpeftError
from fedpeft.core.seeds import derive
from fedpeft.core.settings import (
    BY_SITE,
    MAX_ROUNDS,
    OWNER,
    at_least,
    between,
    build,
    check_ranges,
    no_settings,
    one_of,
    within,
)

if TYPE_CHECKING:
    from fedpeft.methods import TuningMethod

ALL, OWN = "all", "own"
FRESH = "fresh"  # a task of its own computes scores, of the adapter at the beginning of the round
MAX_BUDGET = 1_000_000
SCORE_SAMPLES = within(1, 1_000_000, max_by="max_score_samples", min_by="min_score_samples")

OF_SITES = ("clients_per_round", "joins")  # which sites take part, also where no layers are scheduled
OF_SCORES = ("score", "score_settings", "scoring", "every", "score_samples")
OF_FRONT = ("weight_importance", "weight_diversity")  # which assignment of a front is chosen


def schedule_of(section: Mapping[str, Any] | None, method: TuningMethod) -> ScheduleSettings:
    """Return the checked schedule of a job with what its method sets; refuse other values of the job for that."""
    if not isinstance(section, Mapping):
        return build(ScheduleSettings, section, section="schedule")
    if method.schedule:
        _check_agrees(section, method)
    return build(ScheduleSettings, {**section, **method.schedule}, section="schedule")


def _check_agrees(section: Mapping[str, Any], method: TuningMethod) -> None:
    """Refuse values of a job that differ from what its method sets, and name all of them."""
    own = {name: list(value) if isinstance(value, tuple) else value for name, value in method.schedule.items()}
    if section.get("joins") and own.get("solver", ALL) != ALL:
        raise FedpeftError(
            f"schedule.joins is set, and {method.label} trains some layers in a round, while a site that joins brings "
            f"all: leave schedule.joins out, or use another method.",
            setting="schedule.joins",
        )
    other = [name for name, value in own.items() if section.get(name, value) != value]
    if other:
        given = " and ".join(f"schedule.{name} is {section[name]!r:.80}" for name in other)
        settings = " ".join(f'--set "schedule.{name}={own[name]}"' for name in other)
        raise FedpeftError(
            f"{given}, but {method.label} is trained by a schedule of its own: leave that out or add {settings}, or "
            f"use another method.",
            setting=f"schedule.{other[0]}",
        )


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """Which layers a site trains in a round: the `schedule` section of a job.

    Args:
        solver: `all` (no scheduling: every site trains every layer), `own` (every site its own best layers, without a
            view of the others), or a solver of `fedpeft.scheduling` that weighs importance against diversity. `drawn`
            draws them at random in each round, the same layers for all sites, and scores nothing. A method may set it.
        solver_settings: settings of that solver, e.g. `{"population": 100}` ([solvers](scheduling.md)). A part or
            argument that names another solver drops them.
        score: the layer score, one of `fedpeft.importance.names()`.
        score_settings: settings of that score. A part or argument that names another score drops them.
        scoring: `fresh` (a score task on the round's global adapters, the paper) or `with_reply` (scores of the site's
            just-trained model travel with its reply, for the next round).
        every: a fresh score task in every n-th round; the rounds between use the last scores. Not for `with_reply`.
        score_samples: training samples that a site scores on, rounded down to a power of two at a site with a site
            policy. `fd`, `first_k`, `last_k`, `magnitude` and `fedselect` do not depend on them.
        budget: layers a site may train; 0: what its memory holds, measured at the site.
        budget_range: lowest and highest budget, drawn for each site from the seed; replaces `budget`; 0: the head only.
        site_budgets: by site, a budget that replaces the others; 0: that site trains only its head.
        memory_margin: share of a site's free memory that stays unused where its memory decides the budget, as in the
            paper's Algorithm 46; below 1.
        weight_importance: weight of the importance when one point of the front is chosen.
        weight_diversity: weight of the diversity (minus the variance of the layers' use) in that choice.
        clients_per_round: number of sites drawn for each round; 0: all. Those that join in a round are among its sites.
        joins: by site, the first round that it takes part in; 1 for all others. A site that is named, also with 1,
            starts from its own initial values, first trains by itself as many epochs as the others have trained, and
            brings that adapter along.
    """

    solver: str = ALL
    solver_settings: Mapping[str, Any] = field(default_factory=dict, metadata={OWNER: "solver"})
    score: str = "lntk"
    score_settings: Mapping[str, Any] = field(default_factory=dict, metadata={OWNER: "score"})
    scoring: str = FRESH
    every: int = field(default=1, metadata=within(1, MAX_ROUNDS))
    score_samples: int = field(default=16, metadata=SCORE_SAMPLES)
    budget: int = field(default=0, metadata=within(0, MAX_BUDGET))
    budget_range: tuple[int, ...] = ()
    site_budgets: Mapping[str, int] = field(default_factory=dict, metadata=BY_SITE)
    memory_margin: float = field(default=importance.MemorySettings.margin, metadata=within(0))
    weight_importance: float = field(default=1.0, metadata=within(0))
    weight_diversity: float = field(default=1.0, metadata=within(0))
    clients_per_round: int = field(default=0, metadata=within(0))
    joins: Mapping[str, int] = field(default_factory=dict, metadata=BY_SITE)

    def __post_init__(self) -> None:
        one_of("solver", self.solver, (ALL, OWN, *scheduling.names()))
        if self.solver in (ALL, OWN):
            no_settings(f"solver={self.solver!r}", self.solver_settings)
        else:
            own = scheduling.solver_settings(self.solver, **self.solver_settings)
            for name in getattr(own, "unbounded", ()):
                if getattr(own, name):
                    raise FedpeftError(
                        f"solver_settings.{name} may keep the server busy without end: leave it out, or use "
                        f"fedpeft.scheduling in a program of your own."
                    )
        importance.method_settings(self.score, self.score_settings)
        one_of("scoring", self.scoring, (FRESH, "with_reply"))
        check_ranges(self)
        if self.scoring != FRESH and self.every > 1:
            raise FedpeftError(
                f"every={self.every} is for fresh scores, and with scoring={self.scoring!r} new ones come with every "
                f"reply: leave every out.",
                setting="every",
            )
        if self.budget_range and not (
            len(self.budget_range) == 2
            and all(isinstance(budget, int) for budget in self.budget_range)
            and 0 <= self.budget_range[0] <= self.budget_range[1] <= MAX_BUDGET
        ):
            raise FedpeftError(
                f"budget_range is {list(self.budget_range)}, it must be [lowest, highest], at most {MAX_BUDGET:,}."
            )
        if self.active and self.solver != OWN and self.weight_importance == self.weight_diversity == 0:
            raise FedpeftError(
                "weight_importance and weight_diversity are both 0, and no assignment is better than another: set one "
                "of them above 0.",
                setting="weight_importance",
            )
        if self.memory_margin >= 1:
            raise FedpeftError(
                f"memory_margin is {self.memory_margin!r}, it must be a share of at least 0 and below 1.",
                setting="memory_margin",
            )
        for site, budget in self.site_budgets.items():
            between(f"site_budgets.{site}", budget, 0, MAX_BUDGET)
        for site, round in self.joins.items():
            at_least(f"joins.{site}", round, 1)
        if self.joins and self.active:
            raise FedpeftError(
                f"joins names {', '.join(self.joins)} and solver is {self.solver!r}: a site that joins brings all "
                f"layers, set solver to 'all' or leave joins out."
            )

    @property
    def active(self) -> bool:
        """Whether sites train only some layers."""
        return self.solver != ALL

    def acting(self) -> dict[str, Any]:
        """Return the settings that act: all where layers are scheduled, else those of sites that are set."""
        settings = asdict(self)
        return settings if self.active else {name: settings[name] for name in OF_SITES if settings[name]}

    def unread(self, name: str) -> str:
        """Return what to do about a setting that changes nothing; empty: it acts."""
        if name in ("solver", *OF_SITES):
            return ""
        if not self.active:
            return "set schedule.solver as well"
        if name in OF_SCORES and not self.scored:
            return f"leave it out, schedule.solver={self.solver!r} scores no layers"
        if name in OF_FRONT and (self.solver == OWN or not self.scored):
            return f"leave it out, schedule.solver={self.solver!r} has no front to choose from"
        if name == "budget" and self.budget_range:
            return "set schedule.budget_range=[] as well"
        if name == "memory_margin" and (self.budget or self.budget_range):
            return "leave it out, the budget of every site is set and none is measured"
        return ""

    @property
    def scored(self) -> bool:
        """Whether sites score their layers."""
        return self.active and (self.solver == OWN or scheduling.weighs_scores(self.solver))

    def declares(self, ability: str) -> bool:
        """Whether the score's settings declare something, such as `needs_previous`."""
        return getattr(importance.method_settings(self.score, self.score_settings), ability, False)

    def budget_of(self, site: str, *, seed: int) -> int | None:
        """Return the number of layers that a site may train; None if its memory decides."""
        if site in self.site_budgets:
            return self.site_budgets[site]
        if self.budget_range:
            low, high = self.budget_range
            return int(np.random.default_rng(derive(seed, "budget", site)).integers(low, high + 1))
        return self.budget or None

    def first_round(self, site: str) -> int:
        """Return the first round that a site takes part in."""
        return self.joins.get(site, 1)

    def joins_in(self, round: int, site: str) -> bool:
        """Return whether a site joins in this round."""
        return self.joins.get(site) == round

    def participants(self, round: int, sites: Sequence[str], *, seed: int) -> list[str]:
        """Return the sites of a round, drawn from the seed; all that have joined if no number is set.

        A site also takes part in the round where it joins.
        """
        sites = [site for site in sites if self.first_round(site) <= round]
        if not self.clients_per_round or self.clients_per_round >= len(sites):
            return list(sites)
        generator = np.random.default_rng(derive(seed, "participants", round))
        joining = {site for site in sites if self.joins_in(round, site)}
        others = [site for site in sites if site not in joining]
        count = max(0, self.clients_per_round - len(joining))
        drawn = joining | {others[number] for number in generator.choice(len(others), count, replace=False)}
        return [site for site in sites if site in drawn]

    def scores_in(self, round: int) -> bool:
        """Return whether sites compute fresh scores in this round (for `with_reply` only in the first)."""
        return self.scored and (round == 1 or (self.scoring == FRESH and (round - 1) % self.every == 0))

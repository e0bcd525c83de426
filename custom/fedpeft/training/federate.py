# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A whole federation in one process, without FLARE: the job's own numbers, for notebooks, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedpeft.training.aggregation import State, aggregate
from fedpeft.training.learner import Learner, Update


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One round: updates by site, the new global adapter, and what the alignment did."""

    round: int
    updates: dict[str, Update]
    state: State
    report: dict[str, Any]


def federate(learners: Mapping[str, Learner]) -> Iterator[RoundResult]:
    """Run all rounds of a job, one site after the other.

    Args:
        learners: by site; all with the same method and training settings.
    """
    first = next(iter(learners.values()))
    state: State = {}
    for number in range(1, first.training.rounds + 1):
        updates = {site: learner.train_round(number, state) for site, learner in learners.items()}
        report: dict[str, Any] = {}
        if first.method.exchanges:
            replies = {site: (update.state, update.samples) for site, update in updates.items()}
            state, report = aggregate(replies, first.method, previous=state or None)
        yield RoundResult(number, updates, state, report)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Run a whole federation in one process, without FLARE, with the same results; for notebooks, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedpeft.core.keys import layers_of
from fedpeft.core.states import of_keys
from fedpeft.protocol.secure_sum import without_masks
from fedpeft.server import first_adapter
from fedpeft.server.aggregation import State, aggregate, parts_of
from fedpeft.server.planner import Assignment, RoundPlanner, Sites, best_before_end
from fedpeft.server.update_check import UpdateCheck
from fedpeft.site.learner import Learner, Update

Salts = Callable[[str, int, State], str]


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One round: updates by site, the new global adapter, the alignment report, the layers that each site trained, and
    the reasons for refused updates."""

    round: int
    updates: dict[str, Update]
    state: State
    report: dict[str, Any]
    assignment: Assignment | None = None
    refused: dict[str, str] = field(default_factory=dict)


def federate(learners: Mapping[str, Learner], salts: Salts | None = None) -> Iterator[RoundResult]:
    """Run all rounds of a job, one site after the other.

    Args:
        learners: by site; all with the same method, training and schedule settings.
        salts: from a site's name, a round and the global adapter to what goes into the seeds of its training, as in
            secure sums of a consortium (`fedpeft.protocol.secret_seed`); None: nothing but the job's seed.
    """
    first = next(iter(learners.values()))
    settings, seed = first.schedule, first.training.seed
    secure = first.method.secure_sum
    parted = first.method.matched_layers is not None
    keys = {site: learner.first_state().keys() if parted else () for site, learner in learners.items()}
    state: State = _first_state(learners) if first_adapter.is_needed(first.method, settings) else {}
    budgets = {site: learner.layer_budget() for site, learner in learners.items()}
    planner = RoundPlanner(settings, budgets=budgets, layers=layers_of(first.trainable.parameters()), seed=seed)
    parts: dict[str, float] = {}
    measured: list[Sites] = []
    check = UpdateCheck(first.method, first.training, settings)
    for number in range(1, first.training.rounds + 1):
        sites = planner.participants(number)
        planner.scores |= {site: learners[site].score_layers(number, state) for site in planner.due(number, sites)}
        assignment = planner.assignment(number, sites)
        updates = {}
        for site in sites:
            received = {} if planner.begins(number, site) else of_keys(state, keys[site]) if parted else state
            layers = assignment and assignment.layers[site]
            if salts:
                learners[site].salt = salts(site, number, received)
            updates[site] = learners[site].train_round(number, received, layers, part=parts.get(site, 0.0))
            if settings.scored and settings.scoring == "with_reply":
                planner.scores[site] = learners[site].score_trained(number)
        report: dict[str, Any] = {}
        refused: dict[str, str] = {}
        if first.method.exchanges:
            replies = {site: (update.state, update.samples) for site, update in updates.items()}
            if secure:
                replies = {
                    site: (without_masks(sent, samples, first.method, sites=len(replies)), samples)
                    for site, (sent, samples) in replies.items()
                }
            sent = {site: tensors for site, (tensors, _) in replies.items()}
            announced = {site: samples for site, (_, samples) in replies.items()}
            refused = check.outlying(sent, state, announced, number)
            replies = {site: reply for site, reply in replies.items() if site not in refused}
            parts = parts_of({site: samples for site, (_, samples) in replies.items()}, first.method)
            state, report = aggregate(replies, first.method, previous=state or None)
            check.accept({site: sent[site] for site in replies})
        yield RoundResult(number, updates, state, report, assignment, refused)
        measured.append({site: update.metrics for site, update in updates.items() if site not in refused})
        if best_before_end(measured, first.training.patience):
            return


def _first_state(learners: Mapping[str, Learner]) -> State:
    """Return the adapter that all sites start from."""
    first = next(iter(learners.values()))
    starts = {site: learner.first_state() for site, learner in learners.items()}
    shapes = {site: {key: list(tensor.shape) for key, tensor in state.items()} for site, state in starts.items()}
    announced = {site: (shapes[site], learner.start_digest()) for site, learner in learners.items()}
    return starts[first_adapter.sender(announced, first.method, joins=first.schedule.joins).site]

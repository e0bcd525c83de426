# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The loss along the line between two sites' adapters, before and after alignment.

From a site's own adapter (0) to another site's (1), under the first site's head and on its test questions. An aligned
adapter is the same function at 1, so that a lower loss between the ends is what alignment brings to averaging. The
barrier is how far the loss rises above the straight line between its two ends.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from fedpeft.alignment import PIASettings, align_global, start_merged
from fedpeft.core.states import State
from fedpeft.site import site_state
from fedpeft.site.learner import Learner

POINTS = tuple(k / 8 for k in range(9))
QUESTIONS = 96
BEFORE, BY_WEIGHTS, BY_ACTIVATIONS = "as it comes", "aligned by weights", "aligned by activations"


def losses(learners: Mapping[str, Learner], pairs: Sequence[tuple[str, str]], round: int) -> dict[str, list[float]]:
    """Return alignment -> mean loss over the pairs at each of `POINTS`, with what the sites had after a round.

    Args:
        learners: by site; their models are used and left in any state, as between rounds.
        pairs: of sites: the one whose head and questions are used, and the one whose adapter is moved towards.
        round: whose end is looked at.
    """
    lines: dict[str, list[list[float]]] = {}
    adapters = {site: _kept(learners[site], round) for site in {site for pair in pairs for site in pair}}
    for site, other in pairs:
        learner, own = learners[site], adapters[site]
        learner.values.restore(site_state.load_before(learner.folder, round + 1), {}, folder=learner.folder)
        examples = learner.data.test[:QUESTIONS]
        batches = [b.to(learner.device) for b in learner.batches.draw(examples, learner.training.evaluation_batch_size)]
        for name, there in _aligned(learner, own, adapters[other], round).items():
            line = [learner.loss(batches, start_merged(own, there, share)) for share in POINTS]
            lines.setdefault(name, []).append(line)
    return {name: [statistics.fmean(values) for values in zip(*rows, strict=True)] for name, rows in lines.items()}


def barrier(line: Sequence[float]) -> float:
    """How far a line of losses rises above the straight one between its ends."""
    ends = [(1 - share) * line[0] + share * line[-1] for share in POINTS]
    return max(loss - end for loss, end in zip(line, ends, strict=True))


def _kept(learner: Learner, round: int) -> State:
    state = site_state.load_before(learner.folder, round + 1)
    assert state is not None
    return state.adapter


def _aligned(learner: Learner, own: State, other: State, round: int) -> dict[str, State]:
    """The other site's adapter in every order that is compared; as it comes only where the widths are equal."""
    learner.trainable.load(own)
    learner.trainable.set_companion(None)
    inputs = [batch.inputs for batch in learner.probe(round)]
    activations = learner.trainable.activations([other, own], inputs)
    by_weights, _ = align_global(other, own, settings=PIASettings(support="weights"))
    by_activations, _ = align_global(other, own, activations, PIASettings())
    same = all(own[key].shape == other[key].shape for key in own)
    return {**({BEFORE: other} if same else {}), BY_WEIGHTS: by_weights, BY_ACTIVATIONS: by_activations}

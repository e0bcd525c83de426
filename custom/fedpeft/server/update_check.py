# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Find sites whose update is much larger than the others' in a round."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from fedpeft.alignment.robust_mean import robust_row
from fedpeft.alignment.robust_settings import MEDIAN, RobustSettings
from fedpeft.alignment.stacking import product_length
from fedpeft.methods.factors import factor_places
from fedpeft.methods.settings import MethodSettings
from fedpeft.states import State

MEDIAN_RULE = RobustSettings(average=MEDIAN)


class UpdateCheck:
    """Compares, in every round, how far the sites moved their adapters.

    A site that keeps a part of its own adapter starts a round away from the global one, by at most that part of the
    distance at which its last one stood. This is not counted as training: late in a run, training may be far less.

    Args:
        method: its `robust.update_factor` is used; 0 refuses nobody, and so does a secure sum, which hides the updates.
        distances: of a run that is resumed, as in `distances`.

    Attributes:
        distances: by site, root mean square of the difference between the adapter that it sent last and the global one;
            empty where every site starts from the global adapter.
    """

    def __init__(self, method: MethodSettings, distances: Mapping[str, float] | None = None) -> None:
        hidden = not method.exchanges or method.secure_sum
        self._factor = 0.0 if hidden else method.robust.update_factor
        self._kept = method.pia.most_kept if method.aligns else 0.0
        self._stacked = method.rule.stacks
        self.distances = dict(distances or {})

    def outlying(self, states: Mapping[str, State], previous: State) -> dict[str, str]:
        """Return, by site, the reason to refuse its update in this round.

        An update's length is the root mean square of its numbers, so that sites with few layers or neurons are
        comparable to others. The median of an even number of sites is the lower of the middle two, which one site
        cannot raise; sites without any change are not counted. Of two sites the longer update is refused: which one is
        wrong is unknown.

        Args:
            states: the received adapters by site.
            previous: the adapter that the sites started from; empty in a first round with different initial adapters,
                where the round's coordinate-wise median is the reference.
        """
        if not self._factor or len(states) < 2:
            return {}
        reference = previous or _median_of(states)
        lengths = {site: update_length(state, reference, stacked=self._stacked) for site, state in states.items()}
        moved = sorted(length for length in lengths.values() if length > 0)
        usual = moved[(len(moved) - 1) // 2] if moved else 0.0
        trained = {site: length - self._kept * self.distances.get(site, 0.0) for site, length in lengths.items()}
        return {
            site: f"site {site} moved its adapter by {length:.3g} on average, which is more than {self._factor:g} "
            f"times the {usual:.3g} of the median site (method.robust.update_factor): its update is refused."
            for site, length in trained.items()
            if length > self._factor * usual
        }

    def end_round(self, states: Mapping[str, State], previous: State, merged: State) -> None:
        """Note how far the sites now stand from the new global adapter.

        Args:
            states: the accepted adapters by site.
            previous: the global adapter before the round; empty in a first round with different initial adapters.
            merged: the new one.
        """
        if not self._factor or not self._kept:
            return
        step = update_length(merged, previous)
        self.distances = {site: distance + step for site, distance in self.distances.items()}  # of those away
        self.distances |= {site: update_length(state, merged) for site, state in states.items()}


def update_length(state: State, reference: State, *, stacked: bool = False) -> float:
    """Root mean square of the change; a tensor with another shape than the reference is counted as it is."""
    total, count = product_length(state) if stacked else (0.0, 0)
    if stacked:
        factors = {key for names in factor_places(state).values() for key in names.values()}
        state = {key: tensor for key, tensor in state.items() if key not in factors}
    for key, tensor in state.items():
        start = reference.get(key)
        change = tensor.double() if start is None or start.shape != tensor.shape else tensor.double() - start.double()
        total += float(change.square().sum())
        count += tensor.numel()
    return math.sqrt(total / count) if count else 0.0


def _median_of(states: Mapping[str, State]) -> State:
    """Coordinate-wise median of the tensors that at least two sites sent in the same shape."""
    median: State = {}
    for key in {key for state in states.values() for key in state}:
        tensors = [state[key] for state in states.values() if key in state]
        if len(tensors) > 1 and len({tensor.shape for tensor in tensors}) == 1:
            rows = torch.stack([tensor.double().flatten() for tensor in tensors])
            median[key] = robust_row(rows, MEDIAN_RULE).reshape(tensors[0].shape)
    return median

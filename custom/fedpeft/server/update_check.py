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
    """Compares, in every round, how far the sites trained their adapters.

    A site that keeps a part of its own adapter starts a round between the global adapter and its own last one. How far
    it trained is counted from the nearest such point: late in a run, training may be far less than what is kept. Where
    a site moves neurons of the global adapter before it keeps its own, that counts as training, also when nobody trains
    much any more; so the median there is the largest one of the run so far.

    Args:
        method: its `robust.update_factor` is used; 0 refuses nobody, and so does a secure sum, which hides the updates.
        own, median: of a run that is resumed, as below.

    Attributes:
        own: by site, the adapter that it sent last; empty where every site starts from the global adapter.
        median: the largest median of the rounds so far; 0 where every site starts from the global adapter.
    """

    def __init__(self, method: MethodSettings, own: Mapping[str, State] | None = None, median: float = 0.0) -> None:
        hidden = not method.exchanges or method.secure_sum
        self._factor = 0.0 if hidden else method.robust.update_factor
        self._kept = method.pia.most_kept if method.aligns else 0.0
        self._stacked = method.rule.stacks
        self.own: dict[str, State] = dict(own or {})
        self.median = median

    def outlying(self, states: Mapping[str, State], previous: State) -> dict[str, str]:
        """Return, by site, the reason to refuse its update in this round, and note the round's median.

        An update's length is the root mean square of its numbers, so that sites with few layers or neurons are
        comparable to others. The median of an even number of sites is the lower of the middle two, which one site
        cannot raise; sites without any change are not counted. Of two sites the longer update is refused: which one is
        wrong is unknown.

        Args:
            states: the received adapters by site.
            previous: the adapter that the sites were sent; empty in a first round with different initial adapters,
                where the round's coordinate-wise median is the reference.
        """
        if not self._factor or len(states) < 2:
            return {}
        start = previous or _median_of(states)
        lengths = {
            site: update_length(state, start, stacked=self._stacked, own=self.own.get(site), kept=self._kept)
            for site, state in states.items()
        }
        moved = sorted(length for length in lengths.values() if length > 0)
        usual = moved[(len(moved) - 1) // 2] if moved else 0.0
        when = ""
        if self._kept:
            when = " in an earlier round" * (self.median > usual)
            usual = self.median = max(usual, self.median)
        return {
            site: f"site {site} moved its adapter by {length:.3g} on average, which is more than {self._factor:g} "
            f"times the {usual:.3g} of the median site{when} (method.robust.update_factor): its update is refused."
            for site, length in lengths.items()
            if length > self._factor * usual
        }

    def accept(self, states: Mapping[str, State]) -> None:
        """Note the adapters that were not refused, where their sites may keep a part of them."""
        if self._factor and self._kept:
            self.own |= states


def update_length(
    state: State, start: State, *, stacked: bool = False, own: State | None = None, kept: float = 0.0
) -> float:
    """Root mean square of a change; a tensor with another shape than at the start is counted as it is.

    Args:
        state: what a site sent.
        start: what it was sent.
        stacked: whether factors start anew in every round, so that their whole product is the update.
        own: what it sent last.
        kept: the change is counted from the nearest point between `start` and this part of the way to `own`.
    """
    total, count = product_length(state) if stacked else (0.0, 0)
    if stacked:
        factors = {key for names in factor_places(state).values() for key in names.values()}
        state = {key: tensor for key, tensor in state.items() if key not in factors}
    along, way = 0.0, 0.0  # products of the way to the own adapter with the change, and with itself
    for key, tensor in state.items():
        before, last = start.get(key), (own or {}).get(key)
        if before is None or before.shape != tensor.shape:
            change = tensor.double()
        else:
            change = tensor.double() - before.double()
            if last is not None and last.shape == tensor.shape:
                to_own = last.double() - before.double()
                along += float((to_own * change).sum())
                way += float(to_own.square().sum())
        total += float(change.square().sum())
        count += tensor.numel()
    part = min(max(along / way, 0.0), kept) if way else 0.0
    return math.sqrt(max(total - 2 * part * along + part * part * way, 0.0) / count) if count else 0.0


def _median_of(states: Mapping[str, State]) -> State:
    """Coordinate-wise median of the tensors that at least two sites sent in the same shape."""
    median: State = {}
    for key in {key for state in states.values() for key in state}:
        tensors = [state[key] for state in states.values() if key in state]
        if len(tensors) > 1 and len({tensor.shape for tensor in tensors}) == 1:
            rows = torch.stack([tensor.double().flatten() for tensor in tensors])
            median[key] = robust_row(rows, MEDIAN_RULE).reshape(tensors[0].shape)
    return median

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
from fedpeft.states import State

MEDIAN_RULE = RobustSettings(average=MEDIAN)


def outlying(
    states: Mapping[str, State], previous: State, settings: RobustSettings, *, stacked: bool = False
) -> dict[str, str]:
    """Return, by site, the reason to refuse its update in this round.

    An update's length is the root mean square of its numbers, so that sites with few layers or neurons are comparable
    to others. The median of an even number of sites is the lower of the middle two, which one site cannot raise; sites
    without any change are not counted. Of two sites the longer update is refused: which one is wrong is unknown.

    Args:
        states: the received adapters by site.
        previous: the adapter that the sites started from; empty in a first round with different initial adapters, where
            the round's coordinate-wise median is the reference.
        settings: `update_factor` is used.
        stacked: whether factors start anew in every round, so that their whole product is the update.
    """
    factor = settings.update_factor
    if not factor or len(states) < 2:
        return {}
    reference = previous or _median_of(states)
    lengths = {site: update_length(state, reference, stacked=stacked) for site, state in states.items()}
    moved = sorted(length for length in lengths.values() if length > 0)
    usual = moved[(len(moved) - 1) // 2] if moved else 0.0
    return {
        site: f"site {site} moved its adapter by {length:.3g} on average, which is more than {factor:g} times the "
        f"{usual:.3g} of the median site (method.robust.update_factor): its update is refused."
        for site, length in lengths.items()
        if length > factor * usual
    }


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

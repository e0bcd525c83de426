# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site merges its adapter with, where it decides by losses on its own samples: which plans, and how much."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedpeft.alignment.client_pia import start_merged
from fedpeft.alignment.settings import SHARES
from fedpeft.core.keys import by_place
from fedpeft.core.states import State

Loss = Callable[[State], float]


def accepted_global(
    own: State, received: State, aligned: State, *, share: float, loss: Loss, each_place: bool
) -> State:
    """The global adapter with only those of its neurons moved that lower the loss of the merged adapter.

    Args:
        own: the site's adapter.
        received: the global adapter as it came.
        aligned: the same with its neurons in the order of the own one's.
        share: of the global adapter in the merged one.
        loss: of an adapter, on the probe samples.
        each_place: decide place by place, each after the ones before, instead of once for all.
    """
    if not each_place:
        moved, kept = (loss(start_merged(own, state, share)) for state in (aligned, received))
        return aligned if moved < kept else received
    chosen, lowest = dict(received), loss(start_merged(own, received, share))
    places = by_place(received)
    for place in moved_places(received, aligned):
        candidate = chosen | {key: aligned[key] for key in places[place].values()}
        if (value := loss(start_merged(own, candidate, share))) < lowest:
            chosen, lowest = candidate, value
    return chosen


def moved_places(received: State, aligned: State) -> list[str]:
    """The places of the global adapter whose neurons stand in another order in `aligned`."""
    return [
        place
        for place, names in by_place(received).items()
        if any(not torch.equal(received[key], aligned[key]) for key in names.values())
    ]


def chosen_share(accepted: Callable[[float], State], loss: Callable[[float, State], float]) -> tuple[float, State]:
    """The share of `SHARES` with the lowest loss (the larger of equals), and the global adapter it goes with.

    Args:
        accepted: from a share to the global adapter that the site takes at that share.
        loss: of the model that training would start from, from a share and that adapter, on the validation questions.
    """
    candidates = [(share, accepted(share)) for share in reversed(SHARES)]
    return min(candidates, key=lambda candidate: loss(*candidate))

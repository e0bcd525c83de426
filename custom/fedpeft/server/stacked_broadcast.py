# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Send each site only the factors that were put behind those that it holds (`fedpeft.alignment.stacking`)."""

from __future__ import annotations

import torch

from fedpeft.alignment.factors import RANK_AXIS, factor_places
from fedpeft.core.states import State
from fedpeft.server.delta_broadcast import DeltaBroadcast


class StackedBroadcast(DeltaBroadcast):
    """The stacked factors of all rounds, and how many of them each site holds.

    Args:
        state: the first global adapter; version 1.
    """

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._ranks = {self.version: _ranks(state)}

    def update(self, state: State) -> None:
        """Set a new global adapter; where it does not only grow, every site needs it whole."""
        grown = all(_begins_with(state, self.state, names) for names in factor_places(self.state).values())
        super().update(state)
        self._ranks[self.version] = _ranks(state)
        if not grown:
            self._held.clear()

    def payload(self, site: str) -> State:
        """The factors behind those that a site holds, and the other tensors that changed since."""
        held = self._ranks.get(self.base(site), {})
        payload = super().payload(site)
        for place, names in factor_places(payload).items():
            for name, axis in RANK_AXIS.items():
                tensor, start = payload[names[name]], held.get(place, 0)
                payload[names[name]] = tensor.narrow(axis, start, tensor.shape[axis] - start).contiguous()
        return payload


def _ranks(state: State) -> dict[str, int]:
    return {place: state[names["A"]].shape[0] for place, names in factor_places(state).items()}


def _begins_with(state: State, before: State, names: dict[str, str]) -> bool:
    """Return whether a place begins with the factors that it had."""
    for name, axis in RANK_AXIS.items():
        old, new = before[names[name]], state[names[name]]
        if new.shape[axis] < old.shape[axis] or not torch.equal(new.narrow(axis, 0, old.shape[axis]), old):
            return False
    return True

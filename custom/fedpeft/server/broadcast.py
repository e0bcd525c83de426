# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Send each site only what it does not have yet.

Send each site only the tensors of the global adapter that changed since it last received it.

Send each site only the factors that were put behind those that it holds (`fedpeft.alignment.low_rank`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedpeft.alignment.factors import RANK_AXIS, factor_places
from fedpeft.core.states import State


class DeltaBroadcast:
    """The global adapter with a version number, and the version that each site has.

    Args:
        state: the first global adapter; version 1.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.version = 1
        self._changed = dict.fromkeys(state, 1)
        self._held: dict[str, int] = {}

    def update(self, state: State) -> None:
        """Set a new global adapter; unchanged tensors keep their version."""
        self.version += 1
        for key, tensor in state.items():
            if key not in self.state or not torch.equal(tensor, self.state[key]):
                self._changed[key] = self.version
        self.state = state

    def base(self, site: str) -> int:
        """The version that a site has; 0: none."""
        return self._held.get(site, 0)

    def payload(self, site: str) -> State:
        """The tensors that changed since the version that a site has."""
        return {key: tensor for key, tensor in self.state.items() if self._changed[key] > self.base(site)}

    def confirm(self, answered: Mapping[str, bool]) -> None:
        """Record which sites have the current version (True) and which need all tensors again (False)."""
        for site, holds in answered.items():
            self._held[site] = self.version if holds else 0


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

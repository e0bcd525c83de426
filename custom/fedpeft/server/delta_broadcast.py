# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Send each site only the tensors of the global adapter that changed since it last received it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

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

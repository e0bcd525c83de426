# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which tensors of the global adapter a site still lacks: only those are sent."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedpeft.states import State


class DeltaBroadcast:
    """The global adapter, numbered by version, and the version that every site holds.

    Args:
        state: the first global adapter; version 1.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.version = 1
        self._changed = dict.fromkeys(state, 1)
        self._held: dict[str, int] = {}

    def update(self, state: State) -> None:
        """A new global adapter: tensors that are equal to the old ones keep their version."""
        self.version += 1
        for key, tensor in state.items():
            if key not in self.state or not torch.equal(tensor, self.state[key]):
                self._changed[key] = self.version
        self.state = state

    def base(self, site: str) -> int:
        """The version that a site holds; 0: none."""
        return self._held.get(site, 0)

    def payload(self, site: str) -> State:
        """The tensors that changed since that version."""
        return {key: tensor for key, tensor in self.state.items() if self._changed[key] > self.base(site)}

    def confirm(self, answered: Mapping[str, bool]) -> None:
        """Note who holds the current version (True) and who has to be sent everything again (False)."""
        for site, holds in answered.items():
            self._held[site] = self.version if holds else 0

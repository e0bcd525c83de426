# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a personalization (`training.personalization`) does in a site's round; here nothing, the value `none`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedpeft.core.states import State
from fedpeft.site.site_state import SiteState

if TYPE_CHECKING:
    from fedpeft.site.learner import Learner


class OfRound:
    """One round of a site, made when the model has what the exchanged part starts from.

    Args:
        learner: of the site.
        round: counted from 1.
        own: the site's state after its last round; None: this is its first one.
        near: the global tensors of the round, with the head if that is federated.
        layers: transformer layers that are trained; None: all.

    Attributes:
        kept: what the next round needs, by name, for the site's disk.
        exchanged: head and private tensors of the exchanged model, where another one is measured.
    """

    def __init__(
        self, learner: Learner, *, round: int, own: SiteState | None, near: State, layers: Sequence[int] | None
    ) -> None:
        self.learner, self.round, self.near = learner, round, near
        self.kept: State = {}
        self.exchanged: State = {}

    def train(self) -> dict[str, float]:
        """Replace the trained model by the one that is measured, if another; return the losses of its training."""
        return {}

    def restore(self, trained: State) -> None:
        """Load the exchanged model again, of which `trained` is the adapter, where `train` replaced it."""

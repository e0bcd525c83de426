# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a site's model starts a round from: the global values, its own of the round before, or its first ones.

A head that is averaged over the sites: its tensors travel beside the adapter's, under `head.<parameter>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedpeft.alignment.factors import is_factor
from fedpeft.alignment.low_rank import fitted
from fedpeft.core.errors import FedpeftError, LocalError
from fedpeft.core.keys import HEAD
from fedpeft.core.seeds import derive
from fedpeft.core.states import State
from fedpeft.methods.products import fresh_factors
from fedpeft.methods.settings import MethodSettings
from fedpeft.site.site_model import SiteModel
from fedpeft.site.site_state import SiteState


def head_state(head: Mapping[str, Tensor]) -> State:
    """Return copies of a head's tensors on the CPU, under their keys in messages."""
    return {f"{HEAD}{name}": tensor.detach().cpu().clone() for name, tensor in head.items()}


def without_head(state: State) -> State:
    """Return what of a state belongs to the adapter."""
    return {key: tensor for key, tensor in state.items() if not key.startswith(HEAD)}


def only_head(state: State) -> State:
    """Return the head of a state by its own names, empty if it has none."""
    return {key.removeprefix(HEAD): tensor for key, tensor in state.items() if key.startswith(HEAD)}


class RoundValues:
    """What a model starts its rounds from.

    Args:
        site: the site's name.
        model: as it was built; its values then are the first ones.
        method: what is trained.
        folder: the site's state folder, for errors.
    """

    def __init__(self, site: str, model: SiteModel, method: MethodSettings, folder: Path) -> None:
        self._site, self._model, self._folder = site, model, folder
        self._unequal_ranks = method.rule.unequal_ranks
        self.first, self._first_private = model.first, model.first_private
        self.first_head = {k: value.detach().cpu().clone() for k, value in model.answering.head.state_dict().items()}

    @property
    def first_in_common(self) -> State:
        """The first adapter where all sites have the same one; empty: this site has one of its own."""
        return {} if self._model.init_site else self.first

    def restore(self, own: SiteState | None, received: State, *, first_head: State | None = None) -> None:
        """Load the head, the global one where it is federated, and what else of the model never leaves the site.

        Args:
            own: the site's state after its last round.
            received: the global adapter, with the head if that is federated.
            first_head: other first values of the head than those it was built with.

        Raises:
            LocalError: the state is of another method.
        """
        first = first_head or self.first_head
        head, private = (own.head, own.private) if own else (first, self._first_private)
        if own and own.exchanged:
            head, private = only_head(own.exchanged), without_head(own.exchanged)
        self._model.answering.head.load_state_dict(only_head(received) or head)
        try:
            self._model.trainable.load_private(private)
        except FedpeftError as error:
            raise LocalError(
                f"the state of site {self._site} in {self._folder} is not of this method ({error}): remove that folder."
            ) from error

    def adapter(self, round: int, own: State | None, received: State) -> State:
        """The global adapter as this site can load it; without one, the site's own, or its first one.

        Args:
            round: counted from 1; new factors are drawn with its seed.
            own: the site's adapter of its last round, by key.
            received: the global adapter, by key.
        """
        received = without_head(received)
        if products := self._model.products:
            products.set(received)
            start = {**self.first, **{key: t for key, t in (received or own or {}).items() if not is_factor(key)}}
            seed = derive(self._model.training.seed, "adapter", self._model.init_site, round)
            return fresh_factors(start, seed, start_std=self._model.trainable.start_std)
        if self._unequal_ranks and received:
            return fitted(received, self.first)
        return received or own or self.first

    def moments(self, kept: State) -> State:
        """The optimizer's moments of the round before that still apply: none of factors that were drawn anew."""
        return {key: t for key, t in kept.items() if not (self._model.products and is_factor(key.rpartition("/")[0]))}

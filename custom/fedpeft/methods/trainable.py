# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Interfaces of a tuning method's code: `Tuning` prepares a backbone, `Trainable` is what is trained in it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from fedpeft.backbones.backbone import Backbone
from fedpeft.errors import FedpeftError
from fedpeft.states import State


class Trainable:
    """The part of a backbone that a method trains, without the head."""

    def state(self) -> State:
        """Return copies of its tensors on the CPU, by key (`fedpeft.keys`)."""
        return {key: parameter.detach().cpu().clone() for key, parameter in self.parameters().items()}

    def load(self, state: State) -> None:
        """Write the tensors of a state back."""
        with torch.no_grad():
            for key, parameter in self.parameters().items():
                parameter.copy_(state[key])

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return everything that could be trained, by key."""
        raise NotImplementedError

    def train_only(self, layers: Sequence[int] | None) -> None:
        """Freeze all but these transformer layers; None: train everything."""
        raise NotImplementedError

    def set_companion(self, state: State | None, share: float = 0.5) -> None:
        """Add a frozen copy beside the trained part, output = (1 - share) trained + share frozen; None removes it.

        Raises:
            FedpeftError: the method declares no companion.
        """
        if state is not None:
            raise FedpeftError(f"{type(self).__name__} has no companion: use method.pia.integration='merge'.")

    def activations(
        self, states: Sequence[State], inputs: Sequence[Mapping[str, torch.Tensor]]
    ) -> list[dict[str, torch.Tensor]]:
        """Return, for each state, place -> token-averaged activations (m, r) of its hidden neurons on the same inputs.

        Raises:
            FedpeftError: the method declares no activations.
        """
        raise FedpeftError(f"{type(self).__name__} has no activations: use method.pia.support='weights'.")


class Tuning(Protocol):
    """The code of a tuning method."""

    def prepare(self, backbone: Backbone, settings: Mapping[str, Any], *, seed: int) -> Trainable:
        """Make the part of a backbone that the method trains, and freeze everything else.

        Args:
            backbone: as `fedpeft.backbones.build` returns it; it is changed in place.
            settings: of the method, as a job has them.
            seed: of the initial values.

        Raises:
            FedpeftError: a setting is unknown or does not fit the backbone.
        """


def parameter_count(backbone: Backbone, tuning: Tuning, settings: Mapping[str, Any]) -> int:
    """Count the parameters that a method would train, on the meta device, where they take no memory.

    Args:
        backbone: stays as it is.
        tuning: of the method.
        settings: of the method.
    """
    tensors = (*backbone.parameters(), *backbone.buffers())
    shapes = {id(tensor): torch.empty_like(tensor, device="meta", requires_grad=False) for tensor in tensors}
    shapes |= {id(parameter): nn.Parameter(shapes[id(parameter)]) for parameter in backbone.parameters()}
    with torch.device("meta"):
        trainable = tuning.prepare(copy.deepcopy(backbone, shapes), settings, seed=0)
    return sum(parameter.numel() for parameter in trainable.parameters().values())

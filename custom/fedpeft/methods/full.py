# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Full fine-tuning: every parameter of the backbone is trained and exchanged, as `backbone.<parameter>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from fedpeft.keys import BACKBONE, belongs
from fedpeft.methods.trainable import Trainable, Tuning
from fedpeft.settings import no_settings


class WholeBackbone(Trainable):
    """All parameters of a backbone."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return all parameters by key."""
        return {f"{BACKBONE}{name}": parameter for name, parameter in self._model.named_parameters()}

    def train_only(self, layers: Sequence[int] | None) -> None:
        """Freeze all but these layers; embeddings and pooler, which belong to no layer, train only with everything."""
        for key, parameter in self.parameters().items():
            parameter.requires_grad_(belongs(key, layers))


class FullTuning(Tuning):
    """The tuning method `full`."""

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse any settings."""
        no_settings("full", settings)

    def prepare(self, backbone: nn.Module, settings: Mapping[str, Any], *, seed: int) -> Trainable:
        """Return all parameters of the backbone as trainable."""
        self.check(settings)
        return WholeBackbone(backbone.model)


TUNING = FullTuning()

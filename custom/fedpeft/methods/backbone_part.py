# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Methods that train some of the backbone's own parameters, exchanged as `backbone.<parameter>`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from fedpeft.backbones.backbone import Backbone
from fedpeft.backbones.slots import locate
from fedpeft.backbones.structure import templates_in
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import BACKBONE
from fedpeft.core.settings import no_settings
from fedpeft.methods.biases import bias_names
from fedpeft.methods.trainable import Trainable, Tuning


class BackbonePart(Trainable):
    """Some parameters of a backbone.

    Args:
        model: the backbone's model; all its other parameters are frozen.
        names: of the parameters.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        model.requires_grad_(False)
        self._model, self._names = model, tuple(names)
        self.train_only(None)

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the parameters by key."""
        return {f"{BACKBONE}{name}": self._model.get_parameter(name) for name in self._names}

    def merge(self) -> None:
        """Do nothing: the trained parameters are the backbone's own."""


class PartTuning(Tuning):
    """A method that trains part of a backbone.

    Args:
        name: of its registration.
        selected: from the model to the names of the parameters.
    """

    def __init__(self, name: str, selected: Callable[[nn.Module], Sequence[str]]) -> None:
        self.name, self._selected = name, selected

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse any settings."""
        no_settings(self.name, settings)

    def prepare(self, backbone: Backbone, settings: Mapping[str, Any], *, seed: int) -> Trainable:
        """Return the selected parameters as trainable; see `Tuning.prepare`."""
        self.check(settings)
        names = self._selected(backbone.model)
        if not names:
            raise FedpeftError(f"{self.name} finds no parameter in {type(backbone.model).__name__} to train.")
        return BackbonePart(backbone.model, names)


def _all(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


def _attention(model: nn.Module) -> list[str]:
    """Return the weights and biases of query, key, value and output projection of every layer."""
    templates = templates_in(model, ("query", "key", "value", "attention_linear"), joint=True)
    modules = [path for path, _ in model.named_modules() if locate(path, templates)]
    return [f"{path}.{name}" for path in modules for name, _ in model.get_submodule(path).named_parameters()]


FULL = PartTuning("full", _all)
BIAS = PartTuning("bias", bias_names)
ATTENTION = PartTuning("attention", _attention)

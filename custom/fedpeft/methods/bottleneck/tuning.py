# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What all bottleneck adapters have in common besides their layers: shapes, parameters, names, initial values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fedpeft.backbones.backbone import Backbone
from fedpeft.core.keys import SHARED, parse_key, place_of
from fedpeft.core.states import State
from fedpeft.methods.bottleneck.activations import hidden_activations
from fedpeft.methods.bottleneck.branches import Branches
from fedpeft.methods.bottleneck.config import BottleneckConfig
from fedpeft.methods.bottleneck.layer import BottleneckLayer
from fedpeft.methods.first_values import FirstValues
from fedpeft.methods.slot_tuning import Parameters, Shapes, SlotTuning, check_layers


class BottleneckTuning(SlotTuning):
    """A kind of bottleneck adapter, defined by its configuration class."""

    @property
    def name(self) -> str:
        """The method's name in its configuration class."""
        return self.config_cls.method

    def seeded(self, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Return the settings with `init_seed`."""
        return {**settings, "init_seed": seed}

    def branches(self, backbone: Backbone, settings: Mapping[str, Any], seeds: Mapping[str, int]) -> Branches:
        """Freeze a backbone and put several adapters side by side into it; see `Branches`."""
        return Branches(backbone, self, settings, seeds)

    def templates(self, config: BottleneckConfig, family: str | None) -> dict[str, str]:
        """Return slot -> module path, from the configuration or the model family."""
        return config.templates(family)

    def shapes(self, config: BottleneckConfig, family: str | None, num_layers: int, hidden_size: int) -> Shapes:
        """Return key -> shape for all layers that the configuration names."""
        layers = list(range(num_layers)) if config.layers is None else config.layers
        check_layers({*layers, *(config.layer_widths or ())}, num_layers)
        shapes = {
            f"{place_of(layer, slot)}.{name}": shape
            for layer in layers
            for slot in sorted(config.templates(family))
            for name, shape in config.tensor_shapes(hidden_size, config.width(hidden_size, layer)).items()
        }
        return shapes | {f"{SHARED}{name}": shape for name, shape in config.shared_shapes().items()}

    def parameters(self, model: nn.Module, config: BottleneckConfig, adapter_name: str) -> dict[str, Parameters]:
        """Return place -> parameters of every wrapper that has this adapter."""
        return {
            layer.place: dict(layer.adapters[adapter_name].named_parameters()) for layer in _layers(model, adapter_name)
        }

    def shared_parameters(self, model: nn.Module, adapter_name: str) -> Parameters:
        """Return the parameters that the wrappers look up at their tuner."""
        shared: Parameters = {}
        for layer in _layers(model, adapter_name):
            shared |= layer.shared_parameters(adapter_name)
        return shared

    def activations(
        self,
        model: nn.Module,
        states: Sequence[State],
        inputs: Iterable[Mapping[str, torch.Tensor]],
        adapter_name: str,
    ) -> list[dict[str, torch.Tensor]]:
        """Return the activations that `hidden_activations` computes."""
        return hidden_activations(model, states, inputs, adapter_name=adapter_name)

    def mix(self, model: nn.Module, weights: Mapping[str, float]) -> None:
        """Tell every wrapper."""
        for layer in (module for module in model.modules() if isinstance(module, BottleneckLayer)):
            layer.weights = dict(weights)

    def first_state(self, config: BottleneckConfig, shapes: Shapes) -> State:
        """Return the initial values, each of which depends on `init_seed` and its own key alone."""
        return {key: config.initial_tensor(_name(key), shape, key) for key, shape in shapes.items()}

    def first_values(self, settings: Mapping[str, Any], key: str, shape: tuple[int, ...]) -> FirstValues:
        """Return those of the configuration."""
        return self.config(settings).first_values(_name(key), shape)

    def peft_name(self, tensor: str) -> str:
        """Return for instance `houlsby_adapter.down.weight`."""
        return f"{self.name}_adapter.{tensor}"

    def split_peft_name(self, name: str) -> tuple[str, str] | None:
        """Split a name at, for instance, `houlsby_adapter`."""
        path, mark, tensor = name.partition(f".{self.name}_adapter.")
        return (path, tensor) if mark else None

    def name_modules(self, config: BottleneckConfig, templates: Mapping[str, str]) -> None:
        """Write the module paths into the configuration, so that the saved adapter holds them."""
        config.target_modules = dict(templates)

    def width(self, settings: Mapping[str, Any], layer: int, stream: int) -> int:
        """Return the width of the configuration; see `SlotTuning.width`."""
        return self.config(settings).width(stream, layer)

    def state_settings(self, state: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the width of each layer as `layer_widths`."""
        widths = {}
        for key, tensor in state.items():
            parts = parse_key(key)
            if parts and parts.tensor == "down.weight":
                widths[parts.layer] = tensor.shape[0]
        return {"layer_widths": widths}


def _name(key: str) -> str:
    """Return the name of a tensor at its place, or of a shared one."""
    parts = parse_key(key)
    return parts.tensor if parts else key.removeprefix(SHARED)


def _layers(model: nn.Module, adapter_name: str) -> list[BottleneckLayer]:
    modules = (module for module in model.modules() if isinstance(module, BottleneckLayer))
    return [module for module in modules if adapter_name in module.adapters]

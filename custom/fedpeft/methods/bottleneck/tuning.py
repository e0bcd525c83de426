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

    may_differ = SlotTuning.may_differ | {"layers", "reduction_factor", "layer_widths"}

    def __init__(self, config_cls: type[BottleneckConfig]) -> None:
        super().__init__(config_cls)
        self.name = config_cls.method

    def seeded(self, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        return {**settings, "init_seed": seed}

    def branches(self, backbone: Backbone, settings: Mapping[str, Any], seeds: Mapping[str, int]) -> Branches:
        """Freeze a backbone and put several adapters side by side into it; see `Branches`."""
        return Branches(backbone, self, settings, seeds)

    def templates(self, config: BottleneckConfig, family: str | None) -> dict[str, str]:
        return config.templates(family)

    def shapes(self, config: BottleneckConfig, family: str | None, num_layers: int, hidden_size: int) -> Shapes:
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
        return {
            layer.place: dict(layer.adapters[adapter_name].named_parameters()) for layer in _layers(model, adapter_name)
        }

    def shared_parameters(self, model: nn.Module, adapter_name: str) -> Parameters:
        shared: Parameters = {}
        for layer in _layers(model, adapter_name):
            shared |= layer.shared_parameters(adapter_name)
        return shared

    def activations(
        self, model: nn.Module, states: Sequence[State], inputs: Iterable[Mapping[str, torch.Tensor]], adapter_name: str
    ) -> list[dict[str, torch.Tensor]]:
        return hidden_activations(model, states, inputs, adapter_name=adapter_name)

    def mix(self, model: nn.Module, weights: Mapping[str, float]) -> None:
        for layer in (module for module in model.modules() if isinstance(module, BottleneckLayer)):
            layer.weights = dict(weights)

    def first_state(self, config: BottleneckConfig, shapes: Shapes) -> State:
        return {key: config.initial_tensor(_name(key), shape, key) for key, shape in shapes.items()}

    def first_values(self, settings: Mapping[str, Any], key: str, shape: tuple[int, ...]) -> FirstValues:
        return self.config(settings).first_values(_name(key), shape)

    def peft_name(self, tensor: str) -> str:
        return f"{self.name}_adapter.{tensor}"

    def split_peft_name(self, name: str) -> tuple[str, str] | None:
        path, mark, tensor = name.partition(f".{self.name}_adapter.")
        return (path, tensor) if mark else None

    def name_modules(self, config: BottleneckConfig, templates: Mapping[str, str]) -> None:
        config.target_modules = dict(templates)

    def width(self, settings: Mapping[str, Any], layer: int, stream: int) -> int:
        return self.config(settings).width(stream, layer)

    def state_settings(self, state: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
        widths = {}
        for key, tensor in state.items():
            parts = parse_key(key)
            if parts and parts.tensor == "down.weight":
                widths[parts.layer] = tensor.shape[0]
        return {"layer_widths": widths}


def _name(key: str) -> str:
    parts = parse_key(key)
    return parts.tensor if parts else key.removeprefix(SHARED)


def _layers(model: nn.Module, adapter_name: str) -> list[BottleneckLayer]:
    modules = (module for module in model.modules() if isinstance(module, BottleneckLayer))
    return [module for module in modules if adapter_name in module.adapters]

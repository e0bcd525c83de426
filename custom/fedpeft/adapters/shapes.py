# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What an adapter's wire form looks like, from its configuration alone: the server needs no model."""

import torch
from peft import LoraConfig, PeftConfig

from fedpeft.adapters.bottleneck.config import BottleneckConfig
from fedpeft.adapters.keys import parse_key
from fedpeft.adapters.lora import lora_layers, lora_rank, lora_templates
from fedpeft.backbones.sites import SITES, module_path, two_towers
from fedpeft.errors import FedpeftError


def schema(config: PeftConfig, family: str | None, num_layers: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
    """Wire key -> shape, in the order of ``adapter_state``.

    Args:
        config: configuration of an adapter (or PEFT's LoraConfig).
        family: transformers ``model_type``; may be None where the configuration has its own ``target_modules``.
        num_layers: number of transformer layers of the backbone.
        hidden_size: its width d; a projection that LoRA adapts is taken to be (d, d).

    Raises:
        FedpeftError: a layer is beyond ``num_layers``, a width does not fit, or the kind of adapter is unknown.
    """
    if isinstance(config, BottleneckConfig):
        _check_one_tower(family)
        layers = list(range(num_layers)) if config.layers is None else config.layers
        for layer in {*layers, *(config.layer_widths or ())}:
            _check_layer(layer, num_layers)
        shapes = {
            f"layer.{layer}.{role}.{name}": shape
            for layer in layers
            for role in sorted(config.templates(family))
            for name, shape in config.tensor_shapes(hidden_size, config.width(hidden_size, layer)).items()
        }
        return shapes | {f"shared.{name}": shape for name, shape in config.shared_shapes().items()}
    if isinstance(config, LoraConfig):
        shapes = {}
        templates = lora_templates(config, family)
        _check_one_tower(family)
        for layer in lora_layers(config, num_layers):
            _check_layer(layer, num_layers)
            for role, template in templates.items():
                rank = lora_rank(config, module_path(template, layer))
                shapes[f"layer.{layer}.{role}.A"] = (rank, hidden_size)
                shapes[f"layer.{layer}.{role}.B"] = (hidden_size, rank)
        return shapes
    raise FedpeftError(f"{type(config).__name__} has no wire form: use one of fedpeft.adapters.names().")


def initial_state(
    config: BottleneckConfig, family: str | None, num_layers: int, hidden_size: int
) -> dict[str, torch.Tensor]:
    """The adapter before training, in wire form: the bytes that ``get_peft_model`` starts from with this configuration.

    Args:
        config: its ``init_seed`` decides every value.
        family, num_layers, hidden_size: see ``schema``.

    Raises:
        FedpeftError: the configuration is LoRA's, whose values PEFT draws itself.
    """
    if not isinstance(config, BottleneckConfig):
        raise FedpeftError(
            f"{type(config).__name__} has no seeded initial values: take them from adapter_state(model) at one place."
        )
    state = {}
    for key, shape in schema(config, family, num_layers, hidden_size).items():
        parts = parse_key(key)
        state[key] = config.initial_tensor(parts.tensor if parts else key.removeprefix("shared."), shape, key)
    return state


def _check_one_tower(family: str | None) -> None:
    if two_towers(SITES.get(family or "", {}).values()):
        raise FedpeftError(
            f"model family {family!r} has two stacks of layers, which may differ in number and width: take the shapes "
            "from adapter_state(model)."
        )


def _check_layer(layer: int, num_layers: int) -> None:
    if layer >= num_layers:
        raise FedpeftError(f"the adapter names layer {layer}, but the backbone has layers 0 to {num_layers - 1}.")

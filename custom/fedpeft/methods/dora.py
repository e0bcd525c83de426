# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""DoRA, PEFT's LoRA with a trained magnitude for every output: ``layer.<l>.<query|value>.magnitude`` beside A and B.

Source: Liu et al. 2024, DoRA: Weight-Decomposed Low-Rank Adaptation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from torch import nn

from fedpeft.backbones.slots import locate
from fedpeft.core.keys import place_of
from fedpeft.methods.lora import LoraTuning
from fedpeft.methods.slot_tuning import Parameters, Shapes

MAGNITUDE, PEFT_MAGNITUDE = "magnitude", "lora_magnitude_vector"


class DoraTuning(LoraTuning):
    """LoRA with `use_dora`."""

    name = "dora"

    def matches(self, config: Any) -> bool:
        """Whether the configuration is DoRA's."""
        return type(config) is LoraConfig and config.use_dora

    def completed(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return LoRA's settings with `use_dora`."""
        return {**super().completed(settings), "use_dora": True}

    def shapes(self, config: LoraConfig, family: str | None, num_layers: int, hidden_size: int) -> Shapes:
        """Return key -> shape; every adapted projection is assumed to be (d, d)."""
        shapes = super().shapes(config, family, num_layers, hidden_size)
        places = {key.removesuffix(".B"): shape[0] for key, shape in shapes.items() if key.endswith(".B")}
        return shapes | {f"{place}.{MAGNITUDE}": (outputs,) for place, outputs in places.items()}

    def parameters(self, model: nn.Module, config: LoraConfig, adapter_name: str) -> dict[str, Parameters]:
        """Return A (r, d_in), B (d_out, r) and the magnitude (d_out,) of every projection."""
        places = super().parameters(model, config, adapter_name)
        templates = self.templates(config, getattr(getattr(model, "config", None), "model_type", None))
        for path, module in model.named_modules():
            if isinstance(module, LoraLayer) and adapter_name in module.lora_magnitude_vector:
                slot, layer, _ = locate(path, templates)
                places[place_of(layer, slot)][MAGNITUDE] = module.lora_magnitude_vector[adapter_name].weight
        return places

    def peft_name(self, tensor: str) -> str:
        """Return for instance `lora_A.weight`; PEFT's files have the magnitude without `.weight`."""
        return PEFT_MAGNITUDE if tensor == MAGNITUDE else super().peft_name(tensor)

    def split_peft_name(self, name: str) -> tuple[str, str] | None:
        """Split a name at `lora_A`, `lora_B` or the magnitude."""
        if name.endswith(f".{PEFT_MAGNITUDE}"):
            return name.removesuffix(f".{PEFT_MAGNITUDE}"), MAGNITUDE
        return super().split_peft_name(name)


TUNING = DoraTuning(LoraConfig)

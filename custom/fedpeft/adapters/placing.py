# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Put an adapter into a model."""

from __future__ import annotations

from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from torch import nn

from fedpeft.adapters.lora import complete_targets


def attach(model: nn.Module, config: PeftConfig, adapter_name: str = "default") -> PeftModel:
    """`peft.get_peft_model`, or `add_adapter` for a model that has one; LoRA may name its projections by role.

    Args:
        model: a transformers model or any other module, or a PeftModel that gets one more adapter.
        config: from `fedpeft.adapters.config`, or one of PEFT's.
        adapter_name: name that the adapter gets in the model.

    Raises:
        FedpeftError: `target_modules` do not fit the model.
    """
    if isinstance(config, LoraConfig):
        complete_targets(model, config)
    if isinstance(model, PeftModel):
        model.add_adapter(adapter_name, config)
        return model
    return get_peft_model(model, config, adapter_name)

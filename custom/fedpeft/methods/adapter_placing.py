# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Put an adapter into a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from fedpeft.methods.lookup import tuning_of

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel


def attach(model: nn.Module, config: PeftConfig, adapter_name: str = "default") -> PeftModel:
    """`peft.get_peft_model`, or `add_adapter` for a model that has one; LoRA may name its projections by role.

    Args:
        model: a transformers model or any other module, or a PeftModel that gets one more adapter.
        config: from `fedpeft.adapters.config`.
        adapter_name: name that the adapter gets in the model.

    Raises:
        FedpeftError: `target_modules` do not fit the model, or no method of fedpeft has such configurations.
    """
    from peft import PeftModel, get_peft_model

    tuning_of(config).fit(model, config)
    if isinstance(model, PeftModel):
        model.add_adapter(adapter_name, config)
        return model
    return get_peft_model(model, config, adapter_name)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Attach an adapter to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from fedpeft.core.errors import FedpeftError
from fedpeft.methods.lookup import tuning_of

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel


def attach(model: nn.Module, config: PeftConfig, adapter_name: str = "default") -> PeftModel:
    """Attach an adapter, as `peft.get_peft_model` does; LoRA may name its projections by role.

    Args:
        model: a transformers model or any other module, or a PeftModel that gets one more adapter.
        config: from `fedpeft.adapters.config`.
        adapter_name: name that the adapter gets in the model.

    Raises:
        FedpeftError: `target_modules` does not fit the model, PEFT refuses a setting, or no method of fedpeft uses this
            configuration class.
    """
    from peft import PeftModel, get_peft_model

    tuning = tuning_of(config)
    tuning.fit(model, config)
    try:
        if isinstance(model, PeftModel):
            model.add_adapter(adapter_name, config)
            return model
        return get_peft_model(model, config, adapter_name)
    except FedpeftError:
        raise
    except (TypeError, ValueError) as error:  # of PEFT's own checks, which come with the layers
        raise FedpeftError(f"adapter {tuning.name!r} is refused by PEFT: {str(error).rstrip('.')}.") from error

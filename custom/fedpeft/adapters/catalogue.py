# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Adapters by name, as job files write them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from fedpeft.adapters.registration import METHODS
from fedpeft.errors import FedpeftError

if TYPE_CHECKING:
    from peft import PeftConfig

_PEFTS_OWN = ("peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision")
LORA_DEFAULTS = {"target_modules": ["query", "value"], "r": 4}


def names() -> tuple[str, ...]:
    """Names that ``config`` knows: fedpeft's methods and PEFT's LoRA."""
    return (*METHODS, "lora")


def config(name: str, **settings: Any) -> PeftConfig:
    """PEFT configuration of an adapter.

    Args:
        name: one of ``names()``.
        settings: fields of its configuration, for instance ``reduction_factor=8``.

    Returns:
        HoulsbyConfig, …; for "lora" PEFT's LoraConfig on query and value with r = 4 and a scale (alpha / r) of 2.

    Raises:
        FedpeftError: unknown adapter or setting, or a value out of range.
    """
    if name not in names():
        raise FedpeftError(f"adapter {name!r} is unknown: choose one of {', '.join(names())}")
    import peft
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    if name == "lora":
        settings = {**LORA_DEFAULTS, **settings}
        settings.setdefault("lora_alpha", 2 * settings["r"])
    config_cls = PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType(name.upper())]
    known = [field.name for field in dataclasses.fields(config_cls) if field.init and field.name not in _PEFTS_OWN]
    for setting in settings:
        if setting not in known:
            raise FedpeftError(f"adapter {name!r} has no setting {setting!r}: it has {', '.join(known)}")
    return config_cls(**settings)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Adapters by name, as job files write them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedpeft.adapters.registration import METHODS
from fedpeft.adapters.targets import check_targets, pattern_of
from fedpeft.errors import FedpeftError
from fedpeft.settings import one_of

if TYPE_CHECKING:
    from peft import PeftConfig

_PEFTS_OWN = ("peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision")
LORA_DEFAULTS = {"target_modules": ["query", "value"], "r": 4}


def names() -> tuple[str, ...]:
    """Names that ``config`` takes: fedpeft's methods and PEFT's LoRA."""
    return (*METHODS, "lora")


def config(name: str, **settings: Any) -> PeftConfig:
    """PEFT configuration of an adapter.

    Args:
        name: one of ``names()``.
        settings: fields of its configuration, for instance ``reduction_factor=8``. ``target_modules`` as role -> path
            are taken for "lora" as well.

    Returns:
        HoulsbyConfig, …; for "lora" PEFT's LoraConfig on query and value with r = 4 and a scale (alpha / r) of 2.

    Raises:
        FedpeftError: unknown adapter or setting, or a value out of range.
    """
    if name not in names():
        raise FedpeftError(f"adapter {name!r} is unknown: choose one of {', '.join(names())}.")
    import peft
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    if name == "lora":
        settings = {**LORA_DEFAULTS, **settings}
        settings.setdefault("lora_alpha", 2 * settings["r"])
        if isinstance(settings["target_modules"], Mapping):
            check_targets(settings["target_modules"], name)
            settings["target_modules"] = pattern_of(settings["target_modules"])
    config_cls = PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType(name.upper())]
    known = [field.name for field in dataclasses.fields(config_cls) if field.init and field.name not in _PEFTS_OWN]
    for setting in settings:
        if setting not in known:
            raise FedpeftError(f"adapter {name!r} has no setting {setting!r}: it has {', '.join(known)}.")
    if settings.get("task_type") is not None:
        one_of("task_type", settings["task_type"], [task.value for task in peft.TaskType])
    try:
        return config_cls(**settings)
    except ValueError as error:  # of PEFT's own checks
        raise FedpeftError(f"adapter {name!r} is refused by PEFT: {str(error).rstrip('.')}.") from error

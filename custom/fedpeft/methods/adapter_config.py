# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""PEFT configurations of adapters by name, as in job files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fedpeft.core.errors import FedpeftError
from fedpeft.methods import METHODS
from fedpeft.methods.method import adapter_names

if TYPE_CHECKING:
    from peft import PeftConfig

    from fedpeft.methods.slot_tuning import SlotTuning


def names() -> tuple[str, ...]:
    """Return the names that `config` takes: the methods that are adapters in PEFT's format."""
    return adapter_names()


def config(name: str, **settings: Any) -> PeftConfig:
    """Return the PEFT configuration of an adapter.

    Args:
        name: one of `names()`.
        settings: fields of its configuration, for instance `reduction_factor=8`; `target_modules` may be role -> path
            for "lora" as well.

    Returns:
        HoulsbyConfig, ...; for "lora" PEFT's LoraConfig on query and value with r = 4 and a scale (alpha / r) of 2.

    Raises:
        FedpeftError: unknown adapter or setting, or a value out of range.
    """
    if name not in names():
        raise FedpeftError(f"adapter {name!r} is unknown: choose one of {', '.join(names())}.")
    return cast("SlotTuning", METHODS.get(name).tuning()).config(settings)

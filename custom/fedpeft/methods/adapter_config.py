# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""PEFT configurations of adapters by name, as in job files.

Find the tuning method of an adapter's configuration.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

from fedpeft.core.errors import FedpeftError
from fedpeft.methods import METHODS
from fedpeft.methods.method import adapter_names

if TYPE_CHECKING:
    from peft import PeftConfig

    from fedpeft.methods.slot_tuning import SlotTuning


def tuning_of(config: PeftConfig) -> SlotTuning:
    """Return the code of the method that uses this configuration class."""
    for name in adapter_names():
        with contextlib.suppress(Exception):  # of a plugin whose code cannot be imported: another may be meant
            tuning = cast("SlotTuning", METHODS.get(name).tuning())
            if tuning.matches(config):
                return tuning
    raise FedpeftError(
        f"{type(config).__name__} is of no method of fedpeft: use one of fedpeft.adapters.names(), "
        f"{', '.join(adapter_names())}."
    )


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

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Bottleneck adapters and LoRA as PEFT tuners, and the form in which they are sent."""

from typing import Any

from fedpeft import lazy
from fedpeft.adapters.registration import METHODS

# torch and PEFT cost seconds: a name is imported when it is first used
_HOME = {
    "names": "catalog",
    "config": "catalog",
    "attach": "placing",
    **{f"{method.capitalize()}Config": method for method in METHODS},
    "adapter_state": "state",
    "load_adapter_state": "state",
    "check_state": "state",
    "set_trainable_layers": "state",
    "schema": "shapes",
    "initial_state": "shapes",
    "save_adapter": "folder",
    "load_adapter": "folder",
    "hidden_activations": "activations",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    return lazy.load(__name__, _HOME, name)


def __dir__() -> list[str]:
    return lazy.listing(__name__, _HOME)

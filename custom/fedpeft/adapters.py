# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Adapters in a transformers model, without a federation: configure, attach, read out, write back, save, load.

The adapters themselves are in `fedpeft.methods`.
"""

from typing import Any

from fedpeft.core import lazy

# torch and PEFT cost seconds: a name is imported when it is first used
_HOME = {
    "names": "fedpeft.methods.adapter_config",
    "config": "fedpeft.methods.adapter_config",
    "attach": "fedpeft.methods.adapter_placing",
    "HoulsbyConfig": "fedpeft.methods.houlsby",
    "PfeifferConfig": "fedpeft.methods.pfeiffer",
    "ParallelConfig": "fedpeft.methods.parallel",
    "CompacterConfig": "fedpeft.methods.compacter",
    "adapter_state": "fedpeft.methods.adapter_state",
    "load_adapter_state": "fedpeft.methods.adapter_state",
    "check_state": "fedpeft.methods.adapter_state",
    "set_trainable_layers": "fedpeft.methods.adapter_state",
    "schema": "fedpeft.methods.adapter_schema",
    "initial_state": "fedpeft.methods.adapter_schema",
    "save_adapter": "fedpeft.methods.adapter_folder",
    "load_adapter": "fedpeft.methods.adapter_folder",
    "hidden_activations": "fedpeft.methods.bottleneck.activations",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    return lazy.load(__name__, _HOME, name)


def __dir__() -> list[str]:
    return lazy.listing(__name__, _HOME)

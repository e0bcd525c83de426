# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Adapters in a model of transformers, without a federation: make, attach, take out, put back, save, load.

What a kind of adapter is, is in `fedpeft.methods`.
"""

from typing import Any

from fedpeft import lazy

# torch and PEFT cost seconds: a name is imported when it is first used
_HOME = {
    "names": "catalog",
    "config": "catalog",
    "attach": "placing",
    "HoulsbyConfig": "fedpeft.methods.houlsby",
    "PfeifferConfig": "fedpeft.methods.pfeiffer",
    "ParallelConfig": "fedpeft.methods.parallel",
    "CompacterConfig": "fedpeft.methods.compacter",
    "adapter_state": "state",
    "load_adapter_state": "state",
    "check_state": "state",
    "set_trainable_layers": "state",
    "schema": "shapes",
    "initial_state": "shapes",
    "save_adapter": "folder",
    "load_adapter": "folder",
    "hidden_activations": "fedpeft.methods.bottleneck.activations",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    return lazy.load(__name__, _HOME, name)


def __dir__() -> list[str]:
    return lazy.listing(__name__, _HOME)

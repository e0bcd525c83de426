# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Adapters in a transformers model, without a federation: configure, attach, read out, write back, save, load.

The adapters themselves are in `fedpeft.methods`.
"""

from fedpeft.core.registry import lazy_module

# torch and PEFT cost seconds: a name is imported when it is first used
_HOME = {
    "names": "fedpeft.methods.method",
    "config": "fedpeft.methods.adapters",
    "attach": "fedpeft.methods.adapters",
    "HoulsbyConfig": "fedpeft.methods.bottleneck.adapters",
    "PfeifferConfig": "fedpeft.methods.bottleneck.adapters",
    "ParallelConfig": "fedpeft.methods.bottleneck.adapters",
    "CompacterConfig": "fedpeft.methods.bottleneck.adapters",
    "adapter_state": "fedpeft.methods.adapters",
    "load_adapter_state": "fedpeft.methods.adapters",
    "check_state": "fedpeft.methods.adapters",
    "set_trainable_layers": "fedpeft.methods.adapters",
    "schema": "fedpeft.methods.adapters",
    "initial_state": "fedpeft.methods.adapters",
    "save_adapter": "fedpeft.methods.adapters",
    "load_adapter": "fedpeft.methods.adapters",
    "hidden_activations": "fedpeft.methods.bottleneck.tuning",
}

__all__ = list(_HOME)
__getattr__, __dir__ = lazy_module(__name__, _HOME)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The trainable parameters of a model with adapters, by transformer layer."""

from __future__ import annotations

from torch import nn

from fedpeft.core.keys import parse_key
from fedpeft.methods.adapter_state import adapter_parameters


def adapter_layers(model: nn.Module, adapter_name: str = "default") -> dict[int, list[nn.Parameter]]:
    """Return layer number -> parameters of its adapters, including frozen ones, in the order of the layers.

    Parameters shared between layers (Compacter's rule) belong to none of them: they train as soon as any layer does.

    Args:
        model: PEFT model with one of `fedpeft.adapters.names()`.
        adapter_name: which adapter.

    Raises:
        FedpeftError: the model has no such adapter.
    """
    layers: dict[int, list[nn.Parameter]] = {}
    for key, parameter in adapter_parameters(model, adapter_name).items():
        parts = parse_key(key)
        if parts is not None:
            layers.setdefault(parts.layer, []).append(parameter)
    return dict(sorted(layers.items()))

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Adapter states in wire form, `layer.<l>.<site>.<tensor>`: by place, and in a dtype to compute in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

State = Mapping[str, Tensor]
_ADAPTER_KEY = re.compile(r"(layer\.\d+\.[^.]+)\.(.+)")
_OTHER_KEY = re.compile(r"(shared|backbone)\..+")  # between layers; parameters of the backbone itself


def places(keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group keys by adapter: place `layer.<l>.<site>` -> tensor name -> key; any other key is a place of its own."""
    grouped: dict[str, dict[str, str]] = {}
    for key in keys:
        match = _ADAPTER_KEY.fullmatch(key)
        place, name = match.groups() if match else (key, key)
        grouped.setdefault(place, {})[name] = key
    return grouped


def in_wire_form(key: str) -> bool:
    """Whether a key reads `layer.<l>.<slot>.<tensor>`, `shared.<tensor>` or `backbone.<parameter>`."""
    return bool(_ADAPTER_KEY.fullmatch(key) or _OTHER_KEY.fullmatch(key))


def computable(tensor: Tensor) -> Tensor:
    """The tensor without its gradient, in a dtype to compute in: at least float32."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


def common_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """The narrowest dtype that holds all of them: bfloat16 if all are bfloat16."""
    common: torch.dtype | None = None
    for tensor in tensors:
        common = tensor.dtype if common is None else torch.promote_types(common, tensor.dtype)
    return common


def copy(state: State) -> dict[str, Tensor]:
    """The same values in memory of their own."""
    return {key: tensor.detach().clone() for key, tensor in state.items()}

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A state: tensors by key (`fedpeft.core.keys`), of an adapter or of whatever else is trained and exchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping

import torch
from torch import Tensor

State = dict[str, Tensor]


def computable(tensor: Tensor) -> Tensor:
    """Return the tensor without its gradient, in float32 or wider."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


def common_dtype(tensors: Iterable[Tensor]) -> torch.dtype | None:
    """Return the narrowest dtype that holds all tensors: bfloat16 if all are bfloat16; None for no tensor."""
    common: torch.dtype | None = None
    for tensor in tensors:
        common = tensor.dtype if common is None else torch.promote_types(common, tensor.dtype)
    return common


def of_keys(state: Mapping[str, Tensor], keys: Container[str]) -> State:
    """Return the tensors of a state that have one of these keys."""
    return {key: tensor for key, tensor in state.items() if key in keys}


def copied(state: Mapping[str, Tensor]) -> State:
    """Return a copy that shares no memory with the state."""
    return {key: tensor.detach().clone() for key, tensor in state.items()}


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether two states have the same keys and values."""
    return one.keys() == other.keys() and all(torch.equal(tensor, other[key]) for key, tensor in one.items())


def digest(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a state as 64 hexadecimal digits: of keys, dtypes, shapes and bytes, in the keys' order."""
    summed = hashlib.sha256()
    for key, tensor in sorted(state.items()):
        values = tensor.detach().cpu().contiguous()
        summed.update(f"{key} {values.dtype} {list(values.shape)}\n".encode())
        summed.update(values.flatten().view(torch.uint8).numpy().tobytes())
    return summed.hexdigest()

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A state: tensors by key (`fedpeft.core.keys`), of an adapter or of whatever else is trained and exchanged."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

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


Store = Callable[[Mapping[str, Tensor]], State]  # returns the same tensors, where they are kept from then on


def in_memory(state: Mapping[str, Tensor]) -> State:
    """Return the tensors as they are."""
    return dict(state)


def of_keys(state: Mapping[str, Tensor], keys: Container[str]) -> State:
    """Return the tensors of a state that have one of these keys; of one on disk none is read."""
    if part := getattr(state, "of_keys", None):
        return part(keys)
    return {key: tensor for key, tensor in state.items() if key in keys}


def copied(state: Mapping[str, Tensor]) -> State:
    """Return a copy that shares no memory with the state."""
    return {key: tensor.detach().clone() for key, tensor in state.items()}


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether two states have the same keys and values."""
    return one.keys() == other.keys() and all(torch.equal(tensor, other[key]) for key, tensor in one.items())


def digest(state: Mapping[str, Tensor], *, after: bytes = b"") -> str:
    """Return the SHA-256 of a state as 64 hexadecimal digits: of keys, dtypes, shapes and bytes, in the keys' order.

    `after` is summed before it.
    """
    summed = hashlib.sha256(after)
    for key, tensor in sorted(state.items()):
        values = tensor.detach().cpu().contiguous()
        summed.update(f"{key} {values.dtype} {list(values.shape)}\n".encode())
        summed.update(values.flatten().view(torch.uint8).numpy().tobytes())
    return summed.hexdigest()


Shapes = Mapping[str, Sequence[int]]


class Misfit(NamedTuple):
    """The first thing in a state that is not as its schema says.

    Args:
        what: `keys`: some are missing or unknown; `form`: no dense tensor of plain numbers, or not floating-point where
            no dtype is expected; `dtype`; `shape`; `finite`: NaN or infinity; `size`: a value above the bound.
        key: of the tensor; empty for `keys`.
        missing: keys of the schema that the state lacks, in its order.
        unknown: keys that the schema lacks; they may be anything.
        value: the one furthest above the bound, with its sign.
    """

    what: Literal["keys", "form", "dtype", "shape", "finite", "size"]
    key: str = ""
    missing: tuple[str, ...] = ()
    unknown: tuple[Any, ...] = ()
    value: float = 0.0


def first_misfit(
    state: Mapping[Any, Any],
    shapes: Shapes,
    *,
    dtype: str | None = None,
    whole: bool = True,
    max_side: int | None = None,
    bound: float | None = None,
) -> Misfit | None:
    """Compare a state with its schema; None: it is as it should be.

    Args:
        state: tensors by key; keys and values may be anything.
        shapes: by key, the shape of its tensor.
        dtype: of every tensor, as torch names it; None: any floating-point one.
        whole: whether every key of the schema must be there.
        max_side: no side may be longer, and any length up to it fits; None: shapes are exactly those of the schema.
        bound: largest absolute value; None: values are not looked at.
    """
    missing = tuple(key for key in shapes if key not in state) if whole else ()
    unknown = tuple(key for key in state if key not in shapes)
    if missing or unknown:
        return Misfit("keys", missing=missing, unknown=unknown)
    for key, tensor in state.items():
        if not _is_dense(tensor):
            return Misfit("form", key)
        if dtype is None and not tensor.is_floating_point():
            return Misfit("form", key)
        if dtype is not None and str(tensor.dtype) != f"torch.{dtype}":
            return Misfit("dtype", key)
        if not _fits(list(tensor.shape), list(shapes[key]), max_side):
            return Misfit("shape", key)
        if bound is None or not tensor.numel():
            continue
        low, high = (float(end) for end in torch.aminmax(tensor))
        if not (math.isfinite(low) and math.isfinite(high)):
            return Misfit("finite", key)
        if max(-low, high) > bound:
            return Misfit("size", key, value=low if -low > high else high)
    return None


def _is_dense(tensor: Any) -> bool:
    """Return whether it is a plain tensor with values in memory; nested ones are strided, but have no shape."""
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.is_nested
    return plain and not tensor.is_quantized and tensor.device.type != "meta"


def _fits(shape: list[int], own: list[int], max_side: int | None) -> bool:
    if max_side is None:
        return shape == own
    return len(shape) == len(own) and max(shape, default=0) <= max_side

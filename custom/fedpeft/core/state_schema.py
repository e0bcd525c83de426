# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Hold a state against its schema: keys, form, dtype, shapes and values. Who reports a misfit puts it into words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

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
    longest: int | None = None,
    bound: float | None = None,
) -> Misfit | None:
    """Compare a state with its schema; None: it is as it should be.

    Args:
        state: tensors by key; keys and values may be anything.
        shapes: by key, the shape of its tensor.
        dtype: of every tensor, as torch names it; None: any floating-point one.
        whole: whether every key of the schema must be there.
        longest: no side may be longer, and any length up to it fits; None: shapes are exactly those of the schema.
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
        if not _fits(list(tensor.shape), list(shapes[key]), longest):
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


def _fits(shape: list[int], own: list[int], longest: int | None) -> bool:
    if longest is None:
        return shape == own
    return len(shape) == len(own) and max(shape, default=0) <= longest

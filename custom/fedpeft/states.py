# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A state: tensors by key, of an adapter or of whatever else is trained and travels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

State = dict[str, Tensor]


def computable(tensor: Tensor) -> Tensor:
    """The tensor without its gradient, in a dtype to compute in: at least float32."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


def common_dtype(tensors: Iterable[Tensor]) -> torch.dtype | None:
    """The narrowest dtype that holds all of them: bfloat16 if all are bfloat16; None for no tensor."""
    common: torch.dtype | None = None
    for tensor in tensors:
        common = tensor.dtype if common is None else torch.promote_types(common, tensor.dtype)
    return common


def copied(state: Mapping[str, Tensor]) -> State:
    """The same values in memory of their own."""
    return {key: tensor.detach().clone() for key, tensor in state.items()}

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The precision of a backbone's matrices, which hold nearly all of its parameters, and models without weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

MATRICES = (nn.Linear, nn.Conv2d, nn.Embedding)

MAX_PARTS = 2**18  # twice as many as DeepSeek-V3 has where its experts are modules of their own


def matrices(model: nn.Module) -> list[Tensor]:
    """Return the weights of a model's linear layers, convolutions and embeddings; call it before a method is added."""
    return [module.weight for module in model.modules() if isinstance(module, MATRICES)]


@contextmanager
def made_in_bfloat16() -> Iterator[None]:
    """Build every model in this block with matrices in bfloat16; all else keeps its precision.

    transformers reads each tensor in the model's own precision, so that no whole matrix is ever in float32. The values
    are those of a matrix that was read in float32 and rounded.
    """

    def rounded(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if name != "weight" or parameter is None or not isinstance(module, MATRICES):
            return None
        if parameter.dtype != torch.float32:
            return None
        return nn.Parameter(parameter.to(torch.bfloat16), requires_grad=parameter.requires_grad)

    hook = register_module_parameter_registration_hook(rounded)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def seen_in_float32(weights: Sequence[Tensor]) -> Iterator[None]:
    """Let matrices in bfloat16 look like float32 in this block; the method must not train or read them.

    PEFT draws an adapter's first values in the precision of the adapted matrix, and so those of float32.
    """
    kept = [(weight, weight.data) for weight in weights if weight.dtype == torch.bfloat16]
    for weight, data in kept:
        weight.data = torch.full((), torch.nan, device=data.device).expand(data.shape)
    try:
        yield
    finally:
        for weight, data in kept:
            weight.data = data


@contextmanager
def products(model: nn.Module) -> Iterator[bool]:
    """Compute products in bfloat16 in this block if a model's matrices have it; yield whether they do."""
    half = any(weight.dtype == torch.bfloat16 for weight in matrices(model))
    with torch.autocast(next(model.parameters()).device.type, dtype=torch.bfloat16, enabled=half):
        yield half


@contextmanager
def without_weights() -> Iterator[None]:
    """Build the models of this block on the meta device; refuse one with too many modules and parameters.

    Tensors take no memory there, but modules do, and a large number of layers, groups or experts would fill it.
    """
    parts = itertools.count(1)

    def counted(*_: Any) -> None:
        if next(parts) > MAX_PARTS:
            raise ValueError(
                f"its config.json describes a model of more than {MAX_PARTS:,} modules and parameters: give a whole "
                f"checkpoint"
            )

    hooks = (register_module_module_registration_hook(counted), register_module_parameter_registration_hook(counted))
    try:
        with torch.device("meta"):
            yield
    finally:
        for hook in hooks:
            hook.remove()

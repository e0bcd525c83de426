# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Hold what is trained near given tensors: `mu/2 |w - w_near|^2` beside the loss (`training.proximal_mu`).

Its gradient `mu (w - w_near)` is added just before the optimizer steps, so it costs no pass and no graph, and any
method's way to step has it. FLARE's loss for FedProx compares two whole models instead, and the backbone is one.

Source: Li et al. 2020, FedProx, https://arxiv.org/abs/1812.06127.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def held_near(
    parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, near: Mapping[str, Tensor], mu: float
) -> Iterator[None]:
    """Add `mu (w - near)` to the gradient of every step in this block; tensors without a gradient are left alone.

    Args:
        parameters: what may be trained, by key.
        optimizer: of the block.
        near: tensors by key; those that are no parameters have no effect.
        mu: 0: nothing is added.
    """
    if not mu:
        yield
        return
    pairs = [(parameters[key], tensor.to(parameters[key])) for key, tensor in near.items() if key in parameters]

    def pull(*_: Any) -> None:
        for parameter, tensor in pairs:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - tensor, alpha=mu)

    hook = optimizer.register_step_pre_hook(pull)
    try:
        yield
    finally:
        hook.remove()

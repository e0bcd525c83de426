# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FedProx: every step holds the trained tensors near the global adapter of the round's start.

    w_k <- argmin_w  loss_k(w) + mu/2 |w - w_global|^2

The gradient of the second term is added to that of the loss without a pass or graph (`training.proximal_mu`). FLARE's
loss for FedProx compares two whole models instead, and the backbone is one. Ditto holds its own model in the same way.

Source: Li et al. 2020, FedProx, https://arxiv.org/abs/1812.06127.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def held_near(
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    near: Mapping[str, torch.Tensor],
    mu: float,
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
    trained = {key: parameter for key, parameter in parameters.items() if parameter.requires_grad}
    pairs = [(trained[key], tensor.to(trained[key])) for key, tensor in near.items() if key in trained]

    def pull(*_: Any) -> None:
        for parameter, tensor in pairs:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - tensor, alpha=mu)

    hook = optimizer.register_step_pre_hook(pull)
    try:
        yield
    finally:
        hook.remove()

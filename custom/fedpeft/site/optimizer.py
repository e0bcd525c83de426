# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The optimizer with the papers' parameter groups, and what it keeps from step to step as named tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from fedpeft.answering.training_settings import ADAMW, SGD

Named = Iterable[tuple[str, nn.Parameter]]


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {ADAMW: torch.optim.AdamW, SGD: torch.optim.SGD}
# whether a step changes a number by hardly more than the learning rate, whatever the gradient's size
NORMALIZES = {ADAMW: True, SGD: False}
KEPT_TENSORS = {ADAMW: 2, SGD: 0}  # numbers that are kept for each trained number


def build_optimizer(
    body: Named, head: Named, *, kind: str, learning_rate: float, head_learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Build the optimizer of the trained parameters; no weight decay on biases and LayerNorm.

    These are the tensors of one axis, and what is called a bias: that of experts has two.

    Args:
        body: named parameters of adapters or backbone.
        head: named parameters of the classifier.
        kind: `adamw`, or `sgd` without momentum.
        learning_rate: peak rate of the body.
        head_learning_rate: peak rate of the head.
        weight_decay: of the matrices, decoupled from the gradient with AdamW.

    Source: FedPIA, Training and Implementation Details (AdamW); the federated tuning of vision transformers (SGD).
    """
    groups = []
    for named, rate in ((body, learning_rate), (head, head_learning_rate)):
        named = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        for decays in (True, False):
            chosen = [(name, parameter) for name, parameter in named if _decays(name, parameter) == decays]
            if chosen:
                groups.append(
                    {
                        "params": [parameter for _, parameter in chosen],
                        "names": [name for name, _ in chosen],
                        "lr": rate,
                        "weight_decay": weight_decay if decays else 0.0,
                    }
                )
    return OPTIMIZERS[kind](groups, fused=True)


def moments(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Copy the optimizer's state to CPU tensors named `<parameter>/<entry>`."""
    return {
        f"{name}/{entry}": value.detach().cpu().clone()
        for name, parameter in _named(optimizer)
        for entry, value in optimizer.state.get(parameter, {}).items()
    }


def restore_moments(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Restore what `moments` returned; parameters without stored moments start at zero."""
    for name, parameter in _named(optimizer):
        stored = {key.rsplit("/", 1)[1]: value for key, value in tensors.items() if key.rsplit("/", 1)[0] == name}
        if stored:
            optimizer.state[parameter] = {
                entry: value.to(parameter.device, copy=True) for entry, value in stored.items()
            }


def _decays(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim > 1 and not name.endswith("bias")


def _named(optimizer: torch.optim.Optimizer) -> Iterable[tuple[str, nn.Parameter]]:
    for group in optimizer.param_groups:
        yield from zip(group["names"], group["params"], strict=True)

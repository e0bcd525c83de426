# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""AdamW with the papers' parameter groups, and its moments as named tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

Named = Iterable[tuple[str, nn.Parameter]]


def build_optimizer(
    body: Named, head: Named, *, learning_rate: float, head_learning_rate: float, weight_decay: float
) -> torch.optim.AdamW:
    """Build AdamW for the trained parameters; no weight decay on biases and LayerNorm (the 1-D tensors).

    Args:
        body: named parameters of adapters or backbone.
        head: named parameters of the classifier.
        learning_rate: peak rate of the body.
        head_learning_rate: peak rate of the head.
        weight_decay: decoupled weight decay of the matrices.

    Source: FedPIA, Training and Implementation Details.
    """
    groups = []
    for named, rate in ((body, learning_rate), (head, head_learning_rate)):
        named = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        for decays in (True, False):
            chosen = [(name, parameter) for name, parameter in named if (parameter.ndim > 1) == decays]
            if chosen:
                groups.append(
                    {
                        "params": [parameter for _, parameter in chosen],
                        "names": [name for name, _ in chosen],
                        "lr": rate,
                        "weight_decay": weight_decay if decays else 0.0,
                    }
                )
    return torch.optim.AdamW(groups, foreach=True)


def moments(optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    """Copy the optimizer's state to CPU tensors named `<parameter>/<entry>`."""
    return {
        f"{name}/{entry}": value.detach().cpu().clone()
        for name, parameter in _named(optimizer)
        for entry, value in optimizer.state.get(parameter, {}).items()
    }


def restore_moments(optimizer: torch.optim.AdamW, tensors: dict[str, torch.Tensor]) -> None:
    """Restore what `moments` returned; parameters without stored moments start at zero."""
    for name, parameter in _named(optimizer):
        stored = {key.rsplit("/", 1)[1]: value for key, value in tensors.items() if key.rsplit("/", 1)[0] == name}
        if stored:
            optimizer.state[parameter] = {
                entry: value.clone() if entry == "step" else value.to(parameter.device, copy=True)
                for entry, value in stored.items()
            }


def _named(optimizer: torch.optim.AdamW) -> Iterable[tuple[str, nn.Parameter]]:
    for group in optimizer.param_groups:
        yield from zip(group["names"], group["params"], strict=True)

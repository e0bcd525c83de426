# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Synaptic flow: how much of the network's total flow passes through a layer, without looking at data.

    R = sum of the outputs, all weights in absolute value, on inputs that are all ones        S = mean |theta dR/dtheta|

The mean, because the flow is conserved from layer to layer, so that sums hardly differ.

Source: Tanaka et al. 2020, Pruning neural networks without any data by iteratively conserving synaptic flow, eq. 2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedpeft.core.errors import FedpeftError
from fedpeft.importance.saliency import gradients, over_layers
from fedpeft.importance.scoring_task import ScoringTask
from fedpeft.importance.settings import LayerMean


def synflow(task: ScoringTask, settings: LayerMean) -> Tensor:
    """Return `|theta dR/dtheta|` over the layer, (L,) float64; the first batch gives the inputs' shapes.

    Raises:
        FedpeftError: `model` is missing.
    """
    if task.model is None:
        raise FedpeftError("synflow takes all of the model's weights in absolute value: pass model=, the whole module.")
    batch = all_ones(task.needs_batches()[0])
    with absolute(task.model):
        slopes = gradients(task.logits(batch).sum(), task)
        values = {id(p): (p.detach() * g).abs() for p, g in zip(task.parameters, slopes, strict=True)}
    return over_layers(task, values, settings.reduce)


def all_ones(batch: Any) -> Any:
    """Return a batch with ones in every floating-point tensor; token numbers, masks and targets are unchanged."""
    if isinstance(batch, Tensor):
        return torch.ones_like(batch) if batch.is_floating_point() else batch
    if isinstance(batch, Mapping):
        return {key: all_ones(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(all_ones(value) for value in batch)
    if dataclasses.is_dataclass(batch):
        return dataclasses.replace(
            batch, **{field.name: all_ones(getattr(batch, field.name)) for field in dataclasses.fields(batch)}
        )
    return batch


@contextmanager
def absolute(model: nn.Module) -> Iterator[None]:
    """Take every weight and buffer in absolute value in this block; afterwards restore the same bits."""
    tensors = list({t.data_ptr(): t for t in model.state_dict().values() if t.is_floating_point()}.values())
    negative = [tensor.signbit() for tensor in tensors]
    with torch.no_grad():
        for tensor in tensors:
            tensor.abs_()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, signs in zip(tensors, negative, strict=True):
                tensor.copy_(torch.where(signs, -tensor, tensor))

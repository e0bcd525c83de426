# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Peers that value every parameter by its weight and its gradient, and what they share: one value per parameter,
summed or averaged over a layer. g is the gradient of the mean loss over all samples.

    magnitude  |theta|              Han et al. 2015, Learning both Weights and Connections
    fishmask   E_b[g_b^2]           Sung et al. 2021, Training Neural Networks with Fixed Sparse Masks
    gradflow   g^2                  Lubana & Dick 2021, A Gradient Flow Framework For Analyzing Network Pruning
    snip       |theta g| / total    Lee et al. 2019, SNIP: Single-shot Network Pruning based on Connection Sensitivity
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedpeft.importance.jacobian import jacobian_rows
from fedpeft.importance.scoring_task import ScoringTask
from fedpeft.importance.settings import LayerSum

Values = Mapping[int, Tensor]  # id of a parameter -> a tensor of its shape


def magnitude(task: ScoringTask, settings: LayerSum) -> Tensor:
    """Return `sum |theta|`, (L,) float64; uses no data."""
    return over_layers(task, {id(p): p.detach().abs() for p in task.parameters}, settings.reduce)


def fishmask(task: ScoringTask, settings: LayerSum) -> Tensor:
    """Return `sum E_b[g_b^2]`, the empirical Fisher diagonal, from per-sample gradients; (L,) float64."""
    squares, samples = squared_gradients(task, target="loss")
    return over_layers(task, {key: square / samples for key, square in squares.items()}, settings.reduce)


def gradflow(task: ScoringTask, settings: LayerSum) -> Tensor:
    """Return `||g||^2`, (L,) float64."""
    return over_layers(task, {key: g.square() for key, g in mean_gradients(task).items()}, settings.reduce)


def snip(task: ScoringTask, settings: LayerSum) -> Tensor:
    """Return `sum |theta g| / sum over all layers`, (L,) float64."""
    gradients = mean_gradients(task)
    values = {id(p): (p.detach() * gradients[id(p)]).abs() for p in task.parameters}
    total = sum(value.sum(dtype=torch.float64) for value in values.values())
    scores = over_layers(task, values, settings.reduce)
    return scores / total.cpu() if total else scores


def over_layers(task: ScoringTask, values: Values, reduce: str) -> Tensor:
    """Return the sum or mean of the values of each layer's parameters, (L,) float64."""
    sums = {key: float(value.sum(dtype=torch.float64)) for key, value in values.items()}
    scores = torch.tensor([sum(sums[id(p)] for p in group) for group in task.layers.values()], dtype=torch.float64)
    if reduce == "mean":
        scores = scores / torch.tensor([sum(p.numel() for p in group) for group in task.layers.values()])
    return scores


def mean_gradients(task: ScoringTask) -> dict[int, Tensor]:
    """Return g of every parameter, zero if it does not influence the loss."""
    total = {id(p): torch.zeros_like(p) for p in task.parameters}
    samples = 0
    for batch in task.needs_batches():
        losses = task.losses(batch)
        samples += len(losses)
        for p, gradient in zip(task.parameters, gradients(losses.sum(), task), strict=True):
            total[id(p)] += gradient
    return {key: value / samples for key, value in total.items()}


def gradients(value: Tensor, task: ScoringTask, *, create_graph: bool = False) -> list[Tensor]:
    """Return the gradients of one number with respect to every scored parameter, zero if there is none."""
    if not value.requires_grad:
        return [torch.zeros_like(p) for p in task.parameters]
    slopes = torch.autograd.grad(value, task.parameters, create_graph=create_graph, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(task.parameters, slopes, strict=True)]


def squared_gradients(task: ScoringTask, *, target: str) -> tuple[dict[int, Tensor], int]:
    """Return the sum of squared gradients over samples (and, for `logits`, classes), and the number of samples."""
    total = {id(p): p.new_zeros(p.shape, dtype=torch.promote_types(p.dtype, torch.float32)) for p in task.parameters}

    def receive(parameter: Tensor, column: int, rows: Tensor) -> None:
        total[id(parameter)] += rows.square().sum(0)

    count = 0
    for batch in task.needs_batches():

        def outputs(batch: object = batch) -> Tensor:
            return task.logits(batch) if target == "logits" else task.losses(batch).unsqueeze(1)

        samples, _ = jacobian_rows(outputs, task.parameters, receive, gradients=task.gradients)
        count += samples
    return total, count

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Other scores than the kernel: by weights, gradients or change, and some that use neither model nor data.

Most give every parameter one value, which is summed or averaged over a layer. g is the gradient of the mean loss over
all samples, theta a parameter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import shared_tensors
from fedpeft.importance.jacobian import jacobian_rows, wide
from fedpeft.importance.registry import (
    FedSelectSettings,
    LayerSum,
    RGNSettings,
    SNIPSettings,
    SPTSettings,
    SynFlowSettings,
)
from fedpeft.importance.scoring_task import ScoringTask

Values = Mapping[int, Tensor]  # id of a parameter -> a tensor of its shape
MASKED = -1e4  # additive masks have this or less where nothing is attended


def magnitude(task: ScoringTask, settings: LayerSum) -> Tensor:
    """Return `sum |theta|`, (L,) float64; uses no data.

    Source: Han et al. 2015, Learning both Weights and Connections.
    """
    return reduce_by_layer(task, {id(p): p.detach().abs() for p in task.parameters}, settings.reduce)


def fishmask(task: ScoringTask, settings: LayerSum) -> Tensor:
    """Return `sum E_b[g_b^2]`, the empirical Fisher diagonal, from per-sample gradients; (L,) float64.

    Source: Sung et al. 2021, Training Neural Networks with Fixed Sparse Masks.
    """
    squares, samples = squared_gradients(task, target="loss")
    return reduce_by_layer(task, {key: square / samples for key, square in squares.items()}, settings.reduce)


def gradflow(task: ScoringTask, settings: LayerSum) -> Tensor:
    """Return `||g||^2`, (L,) float64.

    Source: Lubana and Dick 2021, A Gradient Flow Framework For Analyzing Network Pruning.
    """
    return reduce_by_layer(task, {key: g.square() for key, g in mean_gradients(task).items()}, settings.reduce)


def snip(task: ScoringTask, settings: SNIPSettings) -> Tensor:
    """Return `sum |theta g| / sum over all layers`, (L,) float64.

    Source: Lee et al. 2019, SNIP: Single-shot Network Pruning based on Connection Sensitivity.
    """
    gradients = mean_gradients(task)
    values = {id(p): (p.detach() * gradients[id(p)]).abs() for p in task.parameters}
    total = sum(value.sum(dtype=torch.float64) for value in values.values())
    scores = reduce_by_layer(task, values, settings.reduce)
    return scores / total.cpu() if total else scores


def reduce_by_layer(task: ScoringTask, values: Values, reduce: str) -> Tensor:
    """Return the sum or mean of the values of each layer's parameters, (L,) float64."""
    sums = {key: float(value.sum(dtype=torch.float64)) for key, value in values.items()}
    scores = torch.tensor([sum(sums[id(p)] for p in group) for group in task.layers.values()], dtype=torch.float64)
    if reduce == "mean":
        scores = scores / torch.tensor([sum(p.numel() for p in group) for group in task.layers.values()])
    return scores


def mean_gradients(task: ScoringTask) -> dict[int, Tensor]:
    """Return g of every parameter in single precision or wider, zero if it does not influence the loss."""
    total = {id(p): torch.zeros_like(wide(p.detach())) for p in task.parameters}
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

        samples, _ = jacobian_rows(outputs, task.parameters, receive, gradients=task.gradients, model=task.model)
        count += samples
    return total, count


def fd(task: ScoringTask) -> Tensor:
    """Return uniform random scores, so that the best layers are a random subset (federated dropout); (L,) float64.

    Source: Wen et al. 2022, Federated Dropout; Caldas et al. 2018, Expanding the Reach of Federated Learning by
    Reducing Client Resource Requirements.
    """
    if task.generator is None:
        raise FedpeftError("fd draws its scores at random: pass generator=torch.Generator().manual_seed(number).")
    return torch.rand(len(task.layers), generator=task.generator, dtype=torch.float64)


def last_k(task: ScoringTask) -> Tensor:
    """Return `S^l = l + 1`, so that the K best layers are the last K; (L,) float64."""
    return torch.arange(1, len(task.layers) + 1, dtype=torch.float64)


def first_k(task: ScoringTask) -> Tensor:
    """Return `S^l = L - l`, so that the K best layers are the first K; (L,) float64."""
    return torch.arange(len(task.layers), 0, -1, dtype=torch.float64)


def rgn(task: ScoringTask, settings: RGNSettings) -> Tensor:
    """Return the mean over a layer's tensors of `||g|| / ||theta||`, its relative gradient norm, (L,) float64.

    Tensors that are all zero, as fresh biases are, have no such ratio and are left out; `norms="layer"` takes one ratio
    over all numbers of the layer instead, which counts their gradients too.

    Source: Lee et al. 2023, Surgical Fine-Tuning Improves Adaptation to Distribution Shifts (Auto-RGN).
    """
    gradients = mean_gradients(task)
    squares = {
        id(p): (float(gradients[id(p)].double().square().sum()), float(p.detach().double().square().sum()))
        for p in task.parameters
    }
    scores = []
    for number, group in enumerate(task.layers.values()):
        pairs = [squares[id(p)] for p in group]
        if settings.norms == "layer":
            pairs = [(sum(g for g, _ in pairs), sum(theta for _, theta in pairs))]
        ratios = [(g / theta) ** 0.5 for g, theta in pairs if theta > 0]
        if not ratios:
            raise FedpeftError(
                f"{task.name(number)} has only zeros, so its gradient has no relative norm: use another method."
            )
        scores.append(sum(ratios) / len(ratios))
    return torch.tensor(scores, dtype=torch.float64)


def fedselect(task: ScoringTask, settings: FedSelectSettings) -> Tensor:
    """Return `mean |theta - theta before the last local training|` of every layer, (L,) float64; uses no data.

    Source: Tamirisa et al. 2024, FedSelect: Personalized Federated Learning with Customized Selection of Parameters.
    """
    if task.previous is None:
        raise FedpeftError("fedselect compares with the parameters before the last training: pass previous=.")
    values: dict[int, Tensor] = {}
    for number, (layer, group) in enumerate(task.layers.items()):
        before = task.previous.get(layer, ())
        if [tuple(t.shape) for t in before] != [tuple(p.shape) for p in group]:
            raise FedpeftError(
                f"the previous parameters of {task.name(number)} have other shapes or are missing: give one "
                f"tensor for each of its {len(group)} parameters, in the same order."
            )
        values |= {id(p): (p.detach() - old.to(p)).abs() for p, old in zip(group, before, strict=True)}
    return reduce_by_layer(task, values, settings.reduce)


def grasp(task: ScoringTask, settings: LayerSum) -> Tensor:
    """Return `sum theta * (H g)` by double backward, (L,) float64; `H g = d (g . g') / dtheta`, g' = g held fixed.

    It estimates what removing a weight takes from the gradient's norm: weights of a negative layer slow the descent.

    Source: Wang, Zhang and Grosse 2020, Picking Winning Tickets Before Training by Preserving Gradient Flow, equation 8
    (theirs is the negative, kept small).
    """
    batches = task.needs_batches()
    total = {id(p): torch.zeros_like(wide(p.detach())) for p in task.parameters}
    samples = 0
    with sdpa_kernel(SDPBackend.MATH):  # fused attention cannot be differentiated twice
        fixed = list(mean_gradients(task).values()) if len(batches) > 1 else None
        for batch in batches:
            losses = task.losses(batch)
            samples += len(losses)
            own = [wide(g) for g in gradients(losses.sum(), task, create_graph=True)]
            held = [g.detach() / len(losses) for g in own] if fixed is None else fixed
            largest = max(float(h.abs().max()) for h in held)
            scale = (
                2.0 ** -math.frexp(largest)[1] if 0 < largest < math.inf else 1.0
            )  # in half precision H g underflows
            product = sum((g * (scale * h)).sum() for g, h in zip(own, held, strict=True))
            for p, second in zip(task.parameters, gradients(product, task), strict=True):
                total[id(p)] += wide(second) / scale
    values = {id(p): p.detach() * total[id(p)] / samples for p in task.parameters}
    return reduce_by_layer(task, values, settings.reduce)


def spt(task: ScoringTask, settings: SPTSettings) -> Tensor:
    """Return how many (for the mean, which share) of a layer's parameters are sensitive, (L,) float64.

    The tau * p parameters with the largest `sum_b g_b^2`, over all layers, count as sensitive.

    Source: He et al. 2023, Sensitivity-Aware Visual Parameter-Efficient Fine-Tuning, section 3.1.
    """
    squares, _ = squared_gradients(task, target="loss")
    sensitivities = torch.cat([squares[id(p)].flatten() for p in task.parameters])
    count = max(1, round(settings.tau * len(sensitivities)))
    sensitive = torch.zeros_like(sensitivities)
    sensitive[sensitivities.topk(count).indices] = 1
    # topk treats a NaN as the largest value: keep it visible instead
    sensitive = torch.where(torch.isfinite(sensitivities), sensitive, torch.nan)
    parts = sensitive.split([p.numel() for p in task.parameters])
    return reduce_by_layer(task, dict(zip(map(id, task.parameters), parts, strict=True)), settings.reduce)


def synflow(task: ScoringTask, settings: SynFlowSettings) -> Tensor:
    """Return `mean |theta dR/dtheta|`, (L,) float64; R sums the outputs for inputs of ones, all weights made positive.

    The first batch gives the inputs' shapes. It is a mean because the flow is conserved from layer to layer, so that
    sums hardly differ.

    Source: Tanaka et al. 2020, Pruning neural networks without any data by iteratively conserving synaptic flow, eq. 2.
    """
    if task.model is None:
        raise FedpeftError("synflow takes all of the model's weights in absolute value: pass model=, the whole module.")
    batch = all_ones(task.needs_batches()[0])
    with absolute(task.model):
        slopes = gradients(task.logits(batch).sum(), task)
        values = {id(p): (wide(p.detach()) * g).abs() for p, g in zip(task.parameters, slopes, strict=True)}
    return reduce_by_layer(task, values, settings.reduce)


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
    """Replace weights and buffers, except masks, by absolute values in this block; restore the same bits after it."""
    own = (*model.parameters(), *model.buffers(), *shared_tensors(model))
    every = (tensor for tensor in own if tensor.is_floating_point())
    tensors = list({t.data_ptr(): t for t in every if t.isfinite().all() and not (t <= MASKED).any()}.values())
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

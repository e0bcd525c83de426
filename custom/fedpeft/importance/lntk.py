# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Layerwise neural tangent kernel: how fast gradient descent on one layer alone would move the outputs.

    Theta^l = J_l J_l^T        S^l = lambda_1(Theta^l) / sum_k lambda_1(Theta^k)

J_l holds the gradients of the outputs with respect to the layer's p_l trainable parameters. With `target="logits"`,
the paper's kernel, the outputs are all logits, (n*C, p_l), or those of each sample's leading `directions`, (n*q, p_l).
With `target="loss"` they are the n samples' losses, (n, p_l): cheaper, and another order of the layers. Where one pass
yields all rows, only the (n, n) kernels are ever held; otherwise the rows of as many layers as fit into `HELD_BYTES`.

Source: Saha et al., F3OCUS (CVPR 2025), Client-level Layer Importance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedpeft.importance.directions import leading_directions
from fedpeft.importance.eigen import gram, principal_eigenvalue
from fedpeft.importance.jacobian import jacobian_rows
from fedpeft.importance.operations import wide
from fedpeft.importance.scoring_task import ScoringTask
from fedpeft.importance.settings import LNTKSettings

HELD_BYTES = 2**30


class Outputs(NamedTuple):
    """What is differentiated: a function that runs the model on a batch, to (n, K), and how many rows to make room for.

    Losses have few rows: no layers are put off for them.
    """

    run: Callable[[], Tensor]
    rows: int


def lntk(task: ScoringTask, settings: LNTKSettings) -> Tensor:
    """Return lambda_1 of every layer's kernel, (L,) float64."""
    batches = task.needs_batches()
    if settings.target == "loss" and len(batches) == 1:
        kernels = _kernels_of_one_pass(task)
    else:
        outputs = [_outputs(task, settings, batch) for batch in batches]
        groups = _groups(task, sum(one.rows for one in outputs))
        kernels = [kernel for group in groups for kernel in _kernels(task, outputs, group)]
    return torch.tensor([principal_eigenvalue(kernel) for kernel in kernels], dtype=torch.float64)


def _kernels_of_one_pass(task: ScoringTask) -> list[Tensor]:
    """Return the (n, n) kernels, each the sum over the layer's tensors, whose rows are dropped at once."""
    kernels: list[Tensor] = [torch.zeros(1, 1, dtype=torch.float64) for _ in task.layers]

    def receive(parameter: Tensor, column: int, rows: Tensor) -> None:
        added = gram(rows)
        for layer in task.owners[id(parameter)]:
            kernels[layer] = kernels[layer] + added

    jacobian_rows(
        lambda: task.losses(task.batches[0]).unsqueeze(1),
        task.parameters,
        receive,
        gradients=task.gradients,
    )
    return kernels


def _kernels(task: ScoringTask, outputs: Sequence[Outputs], layers: Sequence[int]) -> list[Tensor]:
    """Return the kernels of a few layers over the outputs of all batches, from rows held in memory."""
    groups = list(task.layers.values())
    parameters = list({id(p): p for layer in layers for p in groups[layer]}.values())
    held: dict[int, dict[int, Tensor]] = {id(p): {} for p in parameters}
    sizes: list[int] = []
    for one in outputs:
        first = len(sizes)
        samples, columns = jacobian_rows(
            one.run,
            parameters,
            lambda p, column, rows, first=first: held[id(p)].update({first + column: rows.flatten(1)}),
            gradients=task.gradients,
        )
        sizes += [samples] * columns
    total = {key: gram(_stacked(parts, sizes)) for key, parts in held.items() if parts}
    none = torch.zeros(1, 1, dtype=torch.float64)
    return [sum((total[id(p)] for p in _once(groups[layer]) if id(p) in total), none) for layer in layers]


def _groups(task: ScoringTask, rows: int) -> list[list[int]]:
    """Group layers of which so many rows fit into memory together."""
    groups: list[list[int]] = []
    free = 0
    for number, group in enumerate(task.layers.values()):
        needed = rows * sum(p.numel() * p.element_size() for p in _once(group))
        if not groups or needed > free:
            groups.append([])
            free = HELD_BYTES
        groups[-1].append(number)
        free -= needed
    return groups


def _outputs(task: ScoringTask, settings: LNTKSettings, batch: Any) -> Outputs:
    if settings.target == "loss":
        return Outputs(lambda: task.losses(batch).unsqueeze(1), rows=0)
    if not settings.directions:
        with torch.no_grad():
            rows = task.logits(batch).numel()
        return Outputs(lambda: task.logits(batch), rows)
    directions = leading_directions(task, batch, settings.directions)

    def along_directions() -> Tensor:
        logits = wide(task.logits(batch))
        return torch.bmm(logits.unsqueeze(1), directions.to(logits.dtype)).squeeze(1)

    return Outputs(along_directions, rows=len(directions) * directions.shape[2])


def _stacked(parts: dict[int, Tensor], sizes: Sequence[int]) -> Tensor:
    """Return the rows of all passes (n, p), zero if a pass does not depend on the parameter."""
    some = next(iter(parts.values()))
    return torch.cat([parts.get(k, some.new_zeros(size, some.shape[1])) for k, size in enumerate(sizes)])


def _once(group: Sequence[Tensor]) -> list[Tensor]:
    return list({id(p): p for p in group}.values())

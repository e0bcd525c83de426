# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Layerwise neural tangent kernel: how fast gradient descent on one layer alone would move the outputs.

    Theta^l = J_l J_l^T        S^l = lambda_1(Theta^l) / sum_k lambda_1(Theta^k)

J_l holds the gradients of the outputs with respect to the layer's p_l trainable parameters. With `target="logits"`,
the paper's kernel, the outputs are all logits, (n*C, p_l), or those of each sample's leading `directions`, (n*q, p_l).
With `target="loss"` they are the n samples' losses, (n, p_l): cheaper, and another order of the layers. Where one pass
yields all rows, only the (n, n) kernels are ever held; otherwise the rows of as many layers as fit into `HELD_BYTES`.

The directions of a sample are the few combinations of its logits that react most to the parameters, so that a kernel
needs few backward passes:

    J_b (C, p)  Jacobian of sample b's logits with respect to the last layer's parameters
    P_b (C, q)  its q leading left singular vectors

Any P with orthonormal columns gives `lambda_1(P^T Theta P) <= lambda_1(Theta)`, with equality for q = C (Cauchy's
interlacing theorem), so these directions never raise a score. They are taken at the last layer because a backward pass
to that layer costs little. Rows are hashed to `HASHED` numbers with random signs, which keeps their inner products
unbiased and their memory small; the hash is the same in every call.

Source of the kernel: Saha et al., F3OCUS (CVPR 2025), Client-level Layer Importance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor

from fedpeft.importance.jacobian import jacobian_rows, wide
from fedpeft.importance.registry import LayerSum, LNTKSettings
from fedpeft.importance.saliency import squared_gradients
from fedpeft.importance.scoring_task import ScoringTask

SAFE = 1e-25, 1e35  # the range of squared lengths that single precision can hold

HASHED = 1024  # numbers of a hashed row
MAX_BYTES_OF_DIRECTIONS = 2**29
HELD_BYTES = 2**30


def principal_eigenvalue(gram: Tensor) -> float:
    """Return the largest eigenvalue of a symmetric positive semidefinite matrix (n, n), by Lanczos iteration.

    NaN if the matrix is not finite.

    Source: F3OCUS, supplement, section E.4 (`scipy.sparse.linalg.eigsh`).
    """
    matrix = gram.detach().double().cpu().numpy()
    with np.errstate(over="ignore"):
        scale = float(np.trace(matrix))
    if np.isinf(scale) and np.isfinite(matrix).all():
        return len(matrix) * principal_eigenvalue(gram / len(matrix))
    if len(matrix) == 1 or scale == 0 or not np.isfinite(matrix).all():
        return scale if np.isfinite(matrix).all() else float("nan")
    start = np.random.default_rng(0).standard_normal(len(matrix))  # eigsh would draw it from numpy's global generator
    return scale * float(eigsh(matrix / scale, k=1, which="LA", v0=start, return_eigenvectors=False)[0])


def principal_eigenvalue_of_rows(rows: Tensor) -> float:
    """Return the largest eigenvalue of `rows rows^T`, rows (m, p), from the smaller of its two Gram matrices."""
    rows = rows.double()
    return principal_eigenvalue(rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows)


def gram(rows: Tensor) -> Tensor:
    """Return `rows rows^T` of (n, ...) as (n, n) float64 on the CPU."""
    flat = rows.flatten(1)
    product = (flat @ flat.T).to("cpu", torch.float64)
    if SAFE[0] < float(product.diagonal().max()) < SAFE[1]:
        return product
    largest = float(flat.abs().max())
    if not 0 < largest < np.inf:
        return product
    scaled = flat / largest
    return (scaled @ scaled.T).to("cpu", torch.float64) * largest**2


def leading_directions(task: ScoringTask, batch: Any, count: int) -> Tensor:
    """Return orthonormal combinations of every sample's logits (n, C, min(count, C)), in single precision or wider.

    They come from the task's last layer, differentiated once for each class.
    """
    last = list({id(p): p for p in list(task.layers.values())[-1]}.values())
    hashes: dict[int, _Hash] = {}
    hashed = torch.empty(0)

    def logits() -> Tensor:
        nonlocal hashed
        values = task.logits(batch)
        width = max(1, min(HASHED, MAX_BYTES_OF_DIRECTIONS // (4 * values.numel())))
        hashes.update({id(p): _Hash(p, width, seed) for seed, p in enumerate(last)})
        hashed = torch.zeros(*values.shape, width, device=values.device)
        return values

    def receive(parameter: Tensor, column: int, rows: Tensor) -> None:
        hashed[:, column] += hashes[id(parameter)](rows.flatten(1))

    jacobian_rows(logits, last, receive, gradients=task.gradients, model=task.model)
    kept = min(count, hashed.shape[1])
    # one sample at a time, because C x C for all of them may not fit; the kernel of the layer shows a NaN
    return torch.stack([torch.linalg.eigh(rows @ rows.T)[1][:, -kept:] for rows in hashed.nan_to_num()])


class _Hash:
    """Adds every number of a row to one of `width` places, with a random sign."""

    def __init__(self, parameter: Tensor, width: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        count, device = parameter.numel(), parameter.device
        self.width = width
        self.places = torch.randint(width, (count,), generator=generator).to(device)
        self.signs = (torch.randint(2, (count,), generator=generator) * 2 - 1).to(device)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return (n, width) of rows (n, p)."""
        return rows.new_zeros(len(rows), self.width).index_add_(1, self.places, rows * self.signs)


class Outputs(NamedTuple):
    """A function that runs the model on a batch and returns (n, K), and how many rows of gradients that makes."""

    run: Callable[[], Tensor]
    rows: int


def lntk(task: ScoringTask, settings: LNTKSettings) -> Tensor:
    """Return lambda_1 of every layer's kernel, (L,) float64."""
    return torch.tensor([principal_eigenvalue(kernel) for kernel in kernels(task, settings)], dtype=torch.float64)


def kernels(task: ScoringTask, settings: LNTKSettings) -> list[Tensor]:
    """Return every layer's kernel (n, n) over the outputs of all batches, float64 on the CPU."""
    batches = task.needs_batches()
    if settings.target == "loss" and len(batches) == 1:
        return _kernels_of_one_pass(task)
    outputs = [_outputs(task, settings, batch) for batch in batches]
    groups = _groups(task, sum(output.rows for output in outputs))
    return [kernel for group in groups for kernel in _kernels(task, outputs, group)]


def _kernels_of_one_pass(task: ScoringTask) -> list[Tensor]:
    """Return the (n, n) kernels of all layers; the rows of each tensor are added to them and dropped at once."""
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
        model=task.model,
    )
    return kernels


def _kernels(task: ScoringTask, outputs: Sequence[Outputs], layers: Sequence[int]) -> list[Tensor]:
    """Return the kernels of a few layers over the outputs of all batches, from rows held in memory."""
    groups = list(task.layers.values())
    parameters = list({id(p): p for layer in layers for p in groups[layer]}.values())
    held: dict[int, dict[int, Tensor]] = {id(p): {} for p in parameters}
    sizes: list[int] = []
    for output in outputs:
        first = len(sizes)
        samples, columns = jacobian_rows(
            output.run,
            parameters,
            lambda p, column, rows, first=first: held[id(p)].update({first + column: rows.flatten(1)}),
            gradients=task.gradients,
            model=task.model,
        )
        sizes += [samples] * columns
    total = {key: gram(_stacked(parts, sizes)) for key, parts in held.items() if parts}
    none = torch.zeros(1, 1, dtype=torch.float64)
    return [sum((total[id(p)] for p in _once(groups[layer]) if id(p) in total), none) for layer in layers]


def _groups(task: ScoringTask, rows: int) -> list[list[int]]:
    """Group layers whose rows fit into memory together."""
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
    """Return what is differentiated: losses, all logits, or logits along their leading directions."""
    if settings.target == "loss":
        with torch.no_grad():
            rows = task.losses(batch).numel()
        return Outputs(lambda: task.losses(batch).unsqueeze(1), rows)
    if not settings.directions:
        with torch.no_grad():
            rows = task.logits(batch).numel()
        return Outputs(lambda: task.logits(batch), rows)
    directions = leading_directions(task, batch, settings.directions)

    def projected() -> Tensor:
        logits = wide(task.logits(batch))
        return torch.bmm(logits.unsqueeze(1), directions.to(logits.dtype)).squeeze(1)

    return Outputs(projected, rows=len(directions) * directions.shape[2])


def _stacked(parts: dict[int, Tensor], sizes: Sequence[int]) -> Tensor:
    """Return the rows of all passes (n, p), zeros for a pass that does not depend on the parameter."""
    some = next(iter(parts.values()))
    return torch.cat([parts.get(k, some.new_zeros(size, some.shape[1])) for k, size in enumerate(sizes)])


def _once(group: Sequence[Tensor]) -> list[Tensor]:
    return list({id(p): p for p in group}.values())


def lntk_squared(task: ScoringTask, settings: LayerSum) -> Tensor:
    """Return the sum (or mean) over the layer's tensors of lambda_1(G G^T), (L,) float64: Algorithm 1 as printed.

        G = sum_b sum_i (d logit[b, i] / d W)^2, viewed as (out, -1)        for every tensor W

    This is not the tangent kernel of the paper's text (see `lntk`): squaring loses the signs, and G G^T compares output
    neurons instead of samples. The algorithm scores named tensors, one by one; a layer's score is their sum.

    Source: Saha et al., F3OCUS (CVPR 2025), supplement, Algorithm 1 and Table 7 (a bias is viewed as (out, 1)).
    """
    squares, _ = squared_gradients(task, target="logits")
    values = {
        id(p): principal_eigenvalue_of_rows(squares[id(p)].reshape(len(p) if p.ndim else 1, -1))
        for p in task.parameters
    }
    scores = torch.tensor([sum(values[id(p)] for p in group) for group in task.layers.values()], dtype=torch.float64)
    if settings.reduce == "mean":
        scores = scores / torch.tensor([len(group) for group in task.layers.values()])
    return scores

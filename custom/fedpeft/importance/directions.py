# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The few combinations of its logits to which a sample is most sensitive, so that a kernel needs few backward passes.

    J_b (C, p)  Jacobian of sample b's logits with respect to the last layer's parameters
    P_b (C, q)  its q leading left singular vectors

Any P with orthonormal columns gives `lambda_1(P^T Theta P) <= lambda_1(Theta)`, with equality for q = C (Cauchy's
interlacing theorem), so these directions never raise a score. They are taken at the last layer because a backward pass
that ends there costs little. Rows are hashed to `HASHED` numbers with random signs, which keeps their inner products
unbiased and their memory small; the hash is the same in every call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedpeft.importance.jacobian import jacobian_rows
from fedpeft.importance.scoring_task import ScoringTask

HASHED = 1024
HELD_BYTES = 2**29


def leading_directions(task: ScoringTask, batch: Any, count: int) -> Tensor:
    """Return orthonormal combinations of every sample's logits (n, C, min(q, C)), in single precision or wider.

    Args:
        task: its last layer is the one that is differentiated, once for each class.
        batch: of n samples and C classes.
        count: q.

    Raises:
        FedpeftError: the last layer does not influence the logits.
    """
    last = list({id(p): p for p in list(task.layers.values())[-1]}.values())
    hashes: dict[int, _Hash] = {}
    hashed = torch.empty(0)

    def logits() -> Tensor:
        nonlocal hashed
        values = task.logits(batch)
        width = max(1, min(HASHED, HELD_BYTES // (4 * values.numel())))
        hashes.update({id(p): _Hash(p, width, seed) for seed, p in enumerate(last)})
        hashed = torch.zeros(*values.shape, width, device=values.device)
        return values

    def receive(parameter: Tensor, column: int, rows: Tensor) -> None:
        hashed[:, column] += hashes[id(parameter)](rows.flatten(1))

    jacobian_rows(logits, last, receive, gradients=task.gradients)
    kept = min(count, hashed.shape[1])
    # of one sample at a time, because C x C for all of them may not fit; a NaN is found in the kernel, by its layer
    return torch.stack([torch.linalg.eigh(rows @ rows.T)[1][:, -kept:] for rows in hashed.nan_to_num()])


class _Hash:
    """Adds every number of a row, with a random sign, to one of `width` places."""

    def __init__(self, parameter: Tensor, width: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        count, device = parameter.numel(), parameter.device
        self.width = width
        self.places = torch.randint(width, (count,), generator=generator).to(device)
        self.signs = (torch.randint(2, (count,), generator=generator) * 2 - 1).to(device)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return (n, width) of rows (n, p)."""
        return rows.new_zeros(len(rows), self.width).index_add_(1, self.places, rows * self.signs)

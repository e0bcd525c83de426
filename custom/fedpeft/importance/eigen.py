# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The largest eigenvalue of a Gram matrix."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor

SAFE = 1e-25, 1e35  # squared lengths beyond these leave the range of single precision


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

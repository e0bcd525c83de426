# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Gaussian noise from the operating system's cryptographic generator."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import torch
from scipy.special import ndtri

Source = Callable[[int], bytes]


def gaussian(shape: tuple[int, ...], deviation: float, source: Source = os.urandom) -> torch.Tensor:
    """Draw independent samples of N(0, deviation^2), in float64.

    A job's seed is known to the server, and so is the state of a seeded generator once enough of its output is seen.
    The noise is therefore drawn from the operating system's cryptographic generator: 52 random bits u give
    deviation * Phi^-1((u + 1/2) / 2^52). Draws beyond 8.2 standard deviations, of probability 1e-16, cannot occur.

    Args:
        shape: of the result.
        deviation: standard deviation, not negative.
        source: from a number of bytes to that many random bytes; tests pass a seeded one.
    """
    count = int(np.prod(shape, dtype=np.int64))
    bits = np.frombuffer(source(8 * count), dtype=np.uint64) >> np.uint64(12)
    draws = ndtri((bits.astype(np.float64) + 0.5) * 2.0**-52)
    return torch.from_numpy(draws * deviation).reshape(shape)

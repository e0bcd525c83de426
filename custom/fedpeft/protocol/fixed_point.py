# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Adapters as integers modulo 2^64: their sum is exact, and a uniform mask hides each of them completely.

    encode    e = n round(2^32 x) mod 2^64        n: the site's weight, an integer
    decode    sum_k n_k x_k / sum_k n_k

Rounding costs at most 2^-33 in each number, whatever the number of sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import State

FRACTION_BITS = 32
Numbers = dict[str, np.ndarray]


def encode(state: State, weight: int, sites: int) -> Numbers:
    """Encode a site's weighted tensors as uint64 arrays of the same shapes.

    Args:
        state: floating-point tensors of any dtype.
        weight: n_k, at least 1.
        sites: K, at least 1, the number of encodings to be added: each is below 2^62 / K, so the sum cannot overflow.

    Raises:
        FedpeftError: a number is NaN, infinite or too large for this weight and number of sites; names the key.
    """
    most = 2**62 / (sites * weight)
    numbers = {}
    for key, tensor in state.items():
        scaled = np.rint(tensor.detach().to("cpu", torch.float64).numpy() * 2.0**FRACTION_BITS)
        if not (np.abs(scaled) <= most).all():  # NaN compares false
            raise FedpeftError(
                f"{key} has a number that a secure sum of {sites} sites cannot hold with a weight of {weight}: the "
                f"site's training diverged, or use method.pia.weighting='uniform'.",
                code="training-diverged",
            )
        numbers[key] = (scaled.astype(np.int64) * np.int64(weight)).view(np.uint64)
    return numbers


def wrapped_sum(states: Sequence[State]) -> Numbers:
    """Add int64 wire tensors modulo 2^64; all states have the same keys and shapes."""
    first, *others = states
    totals = {key: from_wire(tensor).copy() for key, tensor in first.items()}
    for state in others:
        for key, total in totals.items():
            total += from_wire(state[key])
    return totals


def decode(totals: Mapping[str, np.ndarray], weight: int, dtypes: Mapping[str, torch.dtype]) -> dict[str, torch.Tensor]:
    """Decode a sum of encodings into the weighted mean.

    Args:
        totals: uint64 arrays.
        weight: the sum of all n_k.
        dtypes: of the result, by key.
    """
    divisor = 2.0**FRACTION_BITS * weight
    return {
        key: torch.from_numpy(np.asarray(total.view(np.int64).astype(np.float64) / divisor)).to(dtypes[key])
        for key, total in totals.items()
    }


def to_wire(numbers: np.ndarray) -> torch.Tensor:
    """View a uint64 array as an int64 tensor with the same bits, which every version of torch can send."""
    return torch.from_numpy(np.ascontiguousarray(numbers).view(np.int64))


def from_wire(tensor: torch.Tensor) -> np.ndarray:
    """View an int64 tensor as a uint64 array with the same bits."""
    return tensor.detach().cpu().contiguous().numpy().view(np.uint64)

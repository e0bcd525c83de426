# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The weighted mean of a round with a secure sum."""

from __future__ import annotations

from collections.abc import Mapping

from fedpeft.core.states import State
from fedpeft.methods.settings import MethodSettings
from fedpeft.protocol.fixed_point import encode, to_wire
from fedpeft.protocol.secure_sum import mean


def weight_of(samples: int, method: MethodSettings) -> int:
    """The integer weight of a site: its training samples, or 1 for a plain mean."""
    return 1 if method.pia.weighting == "uniform" else samples


def without_masks(state: State, samples: int, method: MethodSettings, *, sites: int) -> State:
    """Encode an adapter as a site would, without masks: for a federation in one process, with the same result."""
    return {key: to_wire(numbers) for key, numbers in encode(state, weight_of(samples, method), sites).items()}


def secure_mean(replies: Mapping[str, tuple[State, int]], method: MethodSettings, *, previous: State) -> State:
    """The new global adapter from masked uploads and sample counts by site, in the dtypes of `previous`."""
    uploads, counts = zip(*(replies[site] for site in sorted(replies)), strict=True)
    dtypes = {key: tensor.dtype for key, tensor in previous.items()}
    return mean(uploads, [weight_of(count, method) for count in counts], dtypes)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Derive independent seeds from one, so that a job gives the same bytes in whatever order its sites run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager


def derive(seed: int, *labels: str | int) -> int:
    """Return a 63-bit seed for one purpose, e.g. `("train", "slake", 3)`: the hash of the job's seed and the labels."""
    text = "/".join(map(str, (seed, *labels)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@contextmanager
def draws_restored(seed: int | None = None) -> Iterator[None]:
    """Leave torch's global generators as they were before this block; within it they are seeded, if there is a seed."""
    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        if seed is not None:
            torch.manual_seed(seed)
        yield

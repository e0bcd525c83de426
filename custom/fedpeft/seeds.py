# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Independent seeds from one: the same job gives the same bytes, whoever runs first."""

from __future__ import annotations

import hashlib


def derive(seed: int, *labels: str | int) -> int:
    """A 63-bit seed for one purpose: the hash of the job's seed and the labels.

    Args:
        seed: the job's seed.
        labels: what the stream is for, e.g. `("train", "slake", 3)`.
    """
    text = "/".join(map(str, (seed, *labels)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

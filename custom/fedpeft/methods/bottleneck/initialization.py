# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Initial values that depend on a seed and a tensor's key alone: same seed, same bytes, in any order."""

import hashlib

import torch


def key_generator(seed: int, key: str) -> torch.Generator:
    """Return the CPU generator of one tensor, for instance ``key_generator(0, "layer.3.output.down.weight")``."""
    digest = hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "big") >> 1)


def normal(shape: tuple[int, ...], std: float, seed: int, key: str) -> torch.Tensor:
    """Draw from N(0, std^2), float32 on the CPU."""
    return torch.empty(shape, device="cpu", dtype=torch.float32).normal_(0.0, std, generator=key_generator(seed, key))

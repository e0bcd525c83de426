# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Add products of LoRA's factors to the frozen matrices beside which they stand, and draw fresh factors.

So a site trains on in FLoRA: what all sites have learned is in the frozen weights, and its own factors start anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedpeft.core.errors import FedpeftError
from fedpeft.core.seeds import derive
from fedpeft.core.states import State, computable

XAVIER = "xavier"
StartStd = float | str | None  # deviation of A's first values, or XAVIER; None: as PEFT draws them


class Product(NamedTuple):
    """A frozen matrix (m, n) and the scale with which a product `B A` is added to it."""

    weight: Tensor
    scale: float


class FrozenProducts:
    """The frozen matrices of a model, by place, to which products are added and then taken away again."""

    def __init__(self, products: Mapping[str, Product]) -> None:
        for place, product in products.items():
            if not product.weight.is_floating_point():
                raise FedpeftError(
                    f"the weights of {place} are quantized, which aggregation='stack' adds to: use aggregation='svd'."
                )
        self._products = dict(products)
        self._first = {place: product.weight.detach().clone() for place, product in products.items()}

    @torch.no_grad()
    def set(self, factors: State) -> None:
        """Make every matrix its first value plus its product: `<place>.B` (m, R) times `<place>.A` (R, n), if any."""
        for place, (weight, scale) in self._products.items():
            first = self._first[place]
            down, up = factors.get(f"{place}.A"), factors.get(f"{place}.B")
            if down is None or up is None:
                weight.copy_(first)
                continue
            if down.shape[0] != up.shape[1]:
                raise FedpeftError(f"{place} has factors of rank {down.shape[0]} and {up.shape[1]}: send equal ones.")
            added = computable(up).to(weight.device) @ computable(down).to(weight.device)
            weight.copy_(computable(first).to(weight.device) + scale * added)


def start_deviation(start_std: float | str, shape: tuple[int, ...]) -> float:
    """Return the deviation of first values of a factor (r, n): a number, or for XAVIER sqrt(2 / (r + n)).

    Source: Glorot and Bengio 2010, Understanding the difficulty of training deep feedforward neural networks.
    """
    return math.sqrt(2 / sum(shape)) if start_std == XAVIER else float(start_std)


def first_factor(shape: tuple[int, ...], seed: int, key: str, *, start_std: StartStd) -> Tensor:
    """Return first values of a factor A (r, n), float32 on the CPU; see `fresh_factors`."""
    generator = torch.Generator().manual_seed(derive(seed, key))
    empty = torch.empty(shape, device="cpu", dtype=torch.float32)
    if start_std is not None:
        return empty.normal_(0.0, start_deviation(start_std, shape), generator=generator)
    bound = 1 / math.sqrt(shape[1])
    return empty.uniform_(-bound, bound, generator=generator)


def fresh_factors(state: State, seed: int, *, start_std: StartStd = None) -> State:
    """Return a state whose factors are drawn anew, as LoRA begins: A uniform in 1 / sqrt(n), or normal, and B zero."""
    fresh = dict(state)
    for key, tensor in state.items():
        if key.endswith(".A"):
            fresh[key] = first_factor(tuple(tensor.shape), seed, key, start_std=start_std).to(tensor.dtype)
        elif key.endswith(".B"):
            fresh[key] = torch.zeros_like(tensor)
    return fresh

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Distributions of the first values of a tensor: a method draws from them, and the server checks a site's tensors.

By the Dvoretzky-Kiefer-Wolfowitz inequality the distribution function F_n of n values drawn from F keeps, but for a
chance of 1e-9, to

    max |F_n - F| <= sqrt(ln(2e9) / 2n)

A constant, another standard deviation or another mean violates this once n is large enough. Values depend only on a
seed and a tensor's key: same seed, same bytes, in any order.

Source: Massart 1990, The Tight Constant in the Dvoretzky-Kiefer-Wolfowitz Inequality.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

MAX_VALUE = 1000.0  # far above any weight, gain or magnitude of a backbone
LOG_CHANCE = math.log(2e9)
ROUNDING = 0.01  # change of a distribution function by bfloat16, at most
MAX_STD = 8.0  # torch draws no float32 further out


class Misfit(NamedTuple):
    """The found and the allowed values, in words."""

    found: str
    allowed: str


class FirstValues(ABC):
    """The first values of a tensor; `shows_together`: whether a test needs many values, from several tensors."""

    shows_together: ClassVar[bool] = False

    @abstractmethod
    def misfit(self, values: Tensor) -> Misfit | None:
        """Return how values violate this; None: they do not."""


class Drawn(FirstValues):
    """First values with a known distribution."""

    @abstractmethod
    def drawn(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw the values, float32 on the CPU."""


@dataclass(frozen=True)
class Bounded(FirstValues):
    """Values with a largest absolute value, and nothing else known."""

    bound: float = MAX_VALUE

    def misfit(self, values: Tensor) -> Misfit | None:
        largest = float(values.abs().max()) if values.numel() else 0.0
        return None if largest <= self.bound else Misfit(f"{largest:.3g}", f"{self.bound:.3g} at most")


@dataclass(frozen=True)
class Constant(Drawn):
    """One number everywhere."""

    value: float = 0.0

    def drawn(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.full(shape, self.value, device="cpu", dtype=torch.float32)

    def misfit(self, values: Tensor) -> Misfit | None:
        others = values[values != torch.tensor(self.value, dtype=values.dtype)]
        return Misfit(f"{float(others[0]):.3g}", f"{self.value:g} everywhere") if len(others) else None


@dataclass(frozen=True)
class Normal(Drawn):
    """Values from N(0, std^2), std above 0."""

    shows_together = True
    std: float

    def drawn(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.empty(shape, device="cpu", dtype=torch.float32).normal_(0.0, self.std, generator=generator)

    def misfit(self, values: Tensor) -> Misfit | None:
        return Bounded(MAX_STD * self.std).misfit(values) or _unlike(
            values, lambda x: torch.special.ndtr(x / self.std), f"N(0, {self.std:g}^2)"
        )


@dataclass(frozen=True)
class Uniform(Drawn):
    """Values from U(-bound, bound), bound above 0; each occurs `copies` times in the tensor.

    If the bound is not `known`, it is at most `bound`, and the largest value is taken for it.
    """

    shows_together = True
    bound: float
    known: bool = True
    copies: int = 1

    def drawn(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        empty = torch.empty(shape, device="cpu", dtype=torch.float32)
        return empty.uniform_(-self.bound, self.bound, generator=generator)

    def misfit(self, values: Tensor) -> Misfit | None:
        if found := Bounded(self.bound * (1 + ROUNDING)).misfit(values):
            return found
        bound = self.bound if self.known else float(values.abs().max())
        if not bound:
            return Misfit("nothing but 0", "drawn values")
        of_uniform = f"U(-{bound:.3g}, {bound:.3g})"
        return _unlike(values, lambda x: ((x / bound + 1) / 2).clamp(0, 1), of_uniform, copies=self.copies)


def misfit(state: Mapping[str, Tensor], declared: Mapping[str, FirstValues]) -> str:
    """Describe the first tensor of a finite state that violates its declared first values; empty: there is none.

    Tensors of one distribution are also tested together, so that small ones do not escape.
    """
    alike: dict[FirstValues, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        alike.setdefault(declared[key], {})[key] = tensor
    for first, tensors in alike.items():
        if first.shows_together:
            together = torch.cat([tensor.flatten() for tensor in tensors.values()])
            tensors = {**tensors, f"{len(tensors)} tensors together": together}
        for where, values in tensors.items():
            if wrong := first.misfit(values):
                return f"{wrong.found} in {where}, where its method begins with {wrong.allowed}"
    return ""


def _unlike(values: Tensor, function: Callable[[Tensor], Tensor], name: str, *, copies: int = 1) -> Misfit | None:
    """Return a misfit if the values are not drawn from the distribution with this distribution function."""
    ordered = function(values.detach().double().flatten().sort().values)
    count = len(ordered)
    if not count:
        return None
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    distance = float(torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max())
    if distance <= ROUNDING + math.sqrt(LOG_CHANCE * copies / (2 * count)):
        return None
    rms = float(values.double().square().mean().sqrt())
    return Misfit(f"values of root mean square {rms:.3g}", f"values from {name}")


def key_generator(seed: int, key: str) -> torch.Generator:
    """Return the CPU generator of one tensor, for instance `key_generator(0, "layer.3.output.down.weight")`."""
    digest = hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "big") >> 1)


def normal(shape: tuple[int, ...], std: float, seed: int, key: str) -> torch.Tensor:
    return torch.empty(shape, device="cpu", dtype=torch.float32).normal_(0.0, std, generator=key_generator(seed, key))

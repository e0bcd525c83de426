# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Settings of each layer score, and of the memory budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import at_least, one_of


@dataclass(frozen=True, kw_only=True)
class LayerSum:
    """Settings of a score that gives every parameter a value.

    Args:
        reduce: `sum` of a layer's values, or their `mean` (so that a layer's size does not count).
    """

    reduce: str = "sum"

    def __post_init__(self) -> None:
        one_of("reduce", self.reduce, ("sum", "mean"))


@dataclass(frozen=True, kw_only=True)
class LayerMean(LayerSum):
    """The same for a score that is defined as a mean."""

    reduce: str = "mean"


@dataclass(frozen=True, kw_only=True)
class FedSelectSettings(LayerMean):
    """Settings of `fedselect`, which a site can compute once it has trained."""

    needs_previous: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class LNTKSettings:
    """Settings of `lntk`.

    Args:
        target: differentiate the `loss` of every sample (n rows), or its `logits` (the paper's kernel).
        directions: with `logits`, how many combinations of each sample's logits to differentiate: those to which the
            sample is most sensitive ([how close that is](importance.md)); 0: every logit, n*C rows, C backward passes.
            Of an answer that is written or ranked, the logits are those of its own tokens.
    """

    target: str = "loss"
    directions: int = 0

    def __post_init__(self) -> None:
        one_of("target", self.target, ("loss", "logits"))
        at_least("directions", self.directions, 0)
        if self.directions and self.target == "loss":
            raise FedpeftError(
                f"directions is {self.directions!r}, and the target is the loss, which is one number for each sample: "
                f"set target to 'logits', or leave directions out."
            )

    def rows(self, samples: int, classes: int) -> int:
        """Return the rows of the Jacobian of `samples` samples with `classes` logits each."""
        if self.target == "loss":
            return samples
        return samples * (min(self.directions, classes) if self.directions else classes)


@dataclass(frozen=True, kw_only=True)
class RGNSettings:
    """Settings of `rgn`.

    Args:
        norms: mean over the layer's `tensors` of each one's own ratio, or one ratio for the whole `layer`.
    """

    norms: str = "tensors"

    def __post_init__(self) -> None:
        one_of("norms", self.norms, ("tensors", "layer"))


@dataclass(frozen=True, kw_only=True)
class SPTSettings(LayerSum):
    """Settings of `spt`.

    Args:
        tau: share of all scored parameters that count as sensitive, above 0 and at most 1.
    """

    tau: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.tau <= 1:
            raise FedpeftError(f"tau is {self.tau!r}, it must be a share above 0 and at most 1.")


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Settings of the memory budget.

    Args:
        margin: share of the device's free memory that stays unused, at least 0 and below 1.
        optimizer_tensors: numbers that the optimizer keeps per trained number: 2 for Adam, 1 for momentum, 0 for SGD.
        choice: the count that fits for any layers (`any`), or only for the last ones (`last`).
        available_mib: free memory in MiB, instead of asking the device.
    """

    margin: float = 0.1
    optimizer_tensors: int = 2
    choice: str = "any"
    available_mib: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise FedpeftError(f"margin is {self.margin!r}, it must be a share of at least 0 and below 1.")
        at_least("optimizer_tensors", self.optimizer_tensors, 0)
        one_of("choice", self.choice, ("any", "last"))
        if self.available_mib is not None:
            at_least("available_mib", self.available_mib, 0)

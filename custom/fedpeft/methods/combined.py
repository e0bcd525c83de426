# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Two methods in one backbone: low-rank or full updates of the attention, and prompts beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedpeft.alignment.factors import Product
from fedpeft.backbones.backbone import Backbone
from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import imported
from fedpeft.methods.first_values import Bounded, FirstValues
from fedpeft.methods.trainable import Trainable, Tuning


class CombinedTrainable(Trainable):
    """The trained parts of several methods, with different keys, in one backbone."""

    def __init__(self, parts: Sequence[Trainable]) -> None:
        self._parts = tuple(parts)
        self.start_std = next((part.start_std for part in parts if part.start_std is not None), None)
        self.train_only(None)  # each part froze the earlier ones

    def parameters(self) -> Mapping[str, nn.Parameter]:
        return {key: parameter for part in self._parts for key, parameter in part.parameters().items()}

    def products(self) -> Mapping[str, Product]:
        return {place: product for part in self._parts for place, product in part.products().items()}

    def changed_by(self) -> str:
        return " and ".join(filter(None, (part.changed_by() for part in self._parts)))

    def started_by(self) -> str:
        return " and ".join(filter(None, (part.started_by() for part in self._parts)))


@dataclass(eq=False)
class CombinedTuning(Tuning):
    """Methods that train together, in this order; each has its settings under its name (`homes`: name -> code)."""

    name: str
    homes: Mapping[str, str]

    def check(self, settings: Mapping[str, Any]) -> None:
        for part in settings:
            if part not in self.homes:
                raise FedpeftError(f"{self.name} has no part {part!r}: its settings are those of {self._names}.")
            if not isinstance(settings[part], Mapping):
                raise FedpeftError(f"the settings of {part} in {self.name} are {settings[part]!r}, not an object.")
        for part, home in self.homes.items():
            imported(home).check(settings.get(part, {}))

    def prepare(self, backbone: Backbone, settings: Mapping[str, Any], *, seed: int) -> Trainable:
        self.check(settings)
        parts = self.homes.items()
        return CombinedTrainable(
            [imported(home).prepare(backbone, settings.get(part, {}), seed=seed) for part, home in parts]
        )

    def first_values(self, settings: Mapping[str, Any], key: str, shape: tuple[int, ...]) -> FirstValues:
        """Return those of the first part that declares more than a bound."""
        parts = self.homes.items()
        declared = (imported(home).first_values(settings.get(part, {}), key, shape) for part, home in parts)
        return next((first for first in declared if first != Bounded()), Bounded())

    def width(self, settings: Mapping[str, Any], layer: int, stream: int) -> int | None:
        """Return the width of the part with neurons; see `SlotTuning.width`."""
        for part, home in self.homes.items():
            if width := getattr(imported(home), "width", None):
                return width(settings.get(part, {}), layer, stream)
        return None

    @property
    def _names(self) -> str:
        return " and ".join(self.homes)


LORA, ATTENTION = "fedpeft.methods.lora:TUNING", "fedpeft.methods.backbone_part:ATTENTION"
VPT, DVPT = "fedpeft.methods.prompts:VPT", "fedpeft.methods.prompts:DVPT"
VPT_AT_ONCE = "fedpeft.methods.prompts:VPT_AT_ONCE"
LORA_VPT = CombinedTuning("lora_vpt", {"lora": LORA, "vpt": VPT})
LORA_DVPT = CombinedTuning("lora_dvpt", {"lora": LORA, "dvpt": DVPT})
ATTENTION_VPT = CombinedTuning("attention_vpt", {"attention": ATTENTION, "vpt": VPT})
SBA_VPT = CombinedTuning("sba_vpt", {"attention": ATTENTION, "vpt": VPT_AT_ONCE})

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Pfeiffer adapters, after the feed-forward block only: ``h -> h + up(relu(down(h)))``.

Source: Pfeiffer et al. 2021, AdapterFusion (the bottleneck under the fusion); ReLU and reduction 16 as in AdapterHub's
``SeqBnConfig`` and SPEC section 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedpeft.core.errors import FedpeftError
from fedpeft.methods.bottleneck.config import BottleneckConfig
from fedpeft.methods.bottleneck.layer import BottleneckLayer
from fedpeft.methods.bottleneck.model import BottleneckModel
from fedpeft.methods.bottleneck.module import Bottleneck, Projection
from fedpeft.methods.bottleneck.tuning import BottleneckTuning
from fedpeft.methods.peft_types import register


@dataclass(kw_only=True)
class PfeifferConfig(BottleneckConfig):
    """Settings of Pfeiffer adapters; see ``BottleneckConfig`` for the others.

    Args:
        layer_norm: give the adapter its own LayerNorm before the down-projection: ``h + up(relu(down(LN(h))))``.
    """

    method: ClassVar[str] = "pfeiffer"
    roles: ClassVar[tuple[str, ...]] = ("output",)

    layer_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.layer_norm, bool):
            raise FedpeftError(f"pfeiffer: layer_norm={self.layer_norm!r} must be true or false.")

    def tensor_shapes(self, hidden_size: int, width: int) -> dict[str, tuple[int, ...]]:
        norm = {"norm.weight": (hidden_size,), "norm.bias": (hidden_size,)} if self.layer_norm else {}
        return {**norm, **super().tensor_shapes(hidden_size, width)}


class PfeifferLayer(BottleneckLayer):
    adapter_layer_names = ("pfeiffer_adapter",)

    def build_adapter(self, config: PfeifferConfig, hidden_size: int, width: int, adapter_name: str) -> Bottleneck:
        down, up = Projection(hidden_size, width), Projection(width, hidden_size)
        norm = nn.LayerNorm(hidden_size) if config.layer_norm else None
        return Bottleneck(down, up, config.activation, norm=norm)


class PfeifferModel(BottleneckModel):
    prefix = "pfeiffer_"
    tuner_layer_cls = PfeifferLayer


register("pfeiffer", PfeifferConfig, PfeifferModel)
TUNING = BottleneckTuning(PfeifferConfig)

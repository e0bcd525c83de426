# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A bottleneck adapter behind the attention block only: `h -> h + up(gelu(down(h)))`."""

from dataclasses import dataclass
from typing import ClassVar

from fedpeft.methods.bottleneck.config import BottleneckConfig
from fedpeft.methods.bottleneck.layer import BottleneckLayer
from fedpeft.methods.bottleneck.model import BottleneckModel
from fedpeft.methods.bottleneck.tuning import BottleneckTuning
from fedpeft.methods.peft_types import register


@dataclass(kw_only=True)
class InnerConfig(BottleneckConfig):
    """Settings; see `BottleneckConfig`."""

    method: ClassVar[str] = "inner"
    roles: ClassVar[tuple[str, ...]] = ("attention",)

    reduction_factor: float = 8
    activation: str = "gelu"


class InnerLayer(BottleneckLayer):
    """The wrapper of a module."""

    adapter_layer_names = ("inner_adapter",)


class InnerModel(BottleneckModel):
    """The tuner."""

    prefix = "inner_"
    tuner_layer_cls = InnerLayer


register("inner", InnerConfig, InnerModel)
TUNING = BottleneckTuning(InnerConfig)

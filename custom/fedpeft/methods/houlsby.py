# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Houlsby adapters, after the attention and after the feed-forward block: ``h -> h + up(swish(down(h)))``.

Source: Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP; swish and reduction 16 as in AdapterHub's
``DoubleSeqBnConfig`` and SPEC section 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedpeft.methods.bottleneck.config import BottleneckConfig
from fedpeft.methods.bottleneck.layer import BottleneckLayer
from fedpeft.methods.bottleneck.model import BottleneckModel
from fedpeft.methods.bottleneck.tuning import BottleneckTuning
from fedpeft.methods.peft_types import register


@dataclass(kw_only=True)
class HoulsbyConfig(BottleneckConfig):
    """Settings of Houlsby adapters; see ``BottleneckConfig``."""

    method: ClassVar[str] = "houlsby"
    roles: ClassVar[tuple[str, ...]] = ("attention", "output")

    activation: str = "swish"


class HoulsbyLayer(BottleneckLayer):
    adapter_layer_names = ("houlsby_adapter",)


class HoulsbyModel(BottleneckModel):
    prefix = "houlsby_"
    tuner_layer_cls = HoulsbyLayer


register("houlsby", HoulsbyConfig, HoulsbyModel)
TUNING = BottleneckTuning(HoulsbyConfig)

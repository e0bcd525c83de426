# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The bottleneck adapters by their place in a layer: Houlsby, Pfeiffer, Parallel.

Houlsby adapters, after the attention and after the feed-forward block: ``h -> h + up(swish(down(h)))``.

Source: Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP; swish and reduction 16 as in AdapterHub's
``DoubleSeqBnConfig``.

Pfeiffer adapters, after the feed-forward block only: ``h -> h + up(relu(down(h)))``.

Source: Pfeiffer et al. 2021, AdapterFusion (the bottleneck under the fusion); ReLU and reduction 16 as in AdapterHub's
``SeqBnConfig``.

Parallel adapters, beside the feed-forward block: ``output = block(x) + s * up(relu(down(x)))``.

x is the residual stream that enters the block: the last positional tensor that the wrapped module is called with
(``ViltOutput(hidden_states, input_tensor)``: its second).

Source: He et al. 2022, Towards a Unified View of Parameter-Efficient Transfer Learning; reduction 2 and s = 4 as in
AdapterHub's ``ParBnConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from fedpeft.core.errors import FedpeftError
from fedpeft.methods.bottleneck.config import Bottleneck, BottleneckConfig, Projection, is_number
from fedpeft.methods.bottleneck.layer import BottleneckLayer
from fedpeft.methods.bottleneck.model import BottleneckModel
from fedpeft.methods.bottleneck.tuning import BottleneckTuning
from fedpeft.methods.first_values import Constant, Drawn
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
HOULSBY = BottleneckTuning(HoulsbyConfig)


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
PFEIFFER = BottleneckTuning(PfeifferConfig)


@dataclass(kw_only=True)
class ParallelConfig(BottleneckConfig):
    """Settings of parallel adapters; see ``BottleneckConfig`` for the others.

    Args:
        scaling: the factor s.
    """

    method: ClassVar[str] = "parallel"
    roles: ClassVar[tuple[str, ...]] = ("output",)

    reduction_factor: float = 2
    scaling: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.scaling):
            raise FedpeftError(f"parallel: scaling={self.scaling!r} must be a number.")

    def first_values(self, name: str, shape: tuple[int, ...]) -> Drawn:
        # the up-projection starts at zero, so that training starts from the backbone's own function
        return Constant() if name == "up.weight" else super().first_values(name, shape)


class ParallelLayer(BottleneckLayer):
    adapter_layer_names = ("parallel_adapter",)

    @classmethod
    def check_module(cls, module: nn.Module, path: str, hidden_size: int) -> None:
        inputs = getattr(module, "in_features", None) or getattr(module, "nx", None)  # of transformers' Conv1D
        if inputs and inputs != hidden_size:
            raise FedpeftError(
                f"parallel: {path} reads {inputs} features and writes {hidden_size}, so an adapter beside it cannot "
                f"read the residual stream: {_instead(path.rpartition('.')[0])}."
            )

    def build_adapter(self, config: ParallelConfig, hidden_size: int, width: int, adapter_name: str) -> Bottleneck:
        down, up = Projection(hidden_size, width), Projection(width, hidden_size)
        return Bottleneck(down, up, config.activation, scaling=config.scaling)

    def branch_input(self, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        for argument in reversed(args):
            if isinstance(argument, torch.Tensor):
                return argument
        raise FedpeftError(
            f"{self.place} is called without a positional tensor: a parallel adapter has no input there."
        )


def _instead(parent: str) -> str:
    """Return what to do where the module below this path cannot be wrapped."""
    if parent.rpartition(".")[2].isdigit():  # a whole layer, attention included
        return (
            "the feed-forward block of this layer is no module of its own, so use another method, for instance "
            "'houlsby' or 'pfeiffer'"
        )
    return f"name the feed-forward block, for instance '{parent}'"


class ParallelModel(BottleneckModel):
    prefix = "parallel_"
    tuner_layer_cls = ParallelLayer


register("parallel", ParallelConfig, ParallelModel)
PARALLEL = BottleneckTuning(ParallelConfig)

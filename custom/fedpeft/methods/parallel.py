# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Parallel adapters, beside the feed-forward block: ``output = block(x) + s * up(relu(down(x)))``.

x is the residual stream that enters the block: the last positional tensor that the wrapped module is called with
(``ViltOutput(hidden_states, input_tensor)``: its second).

Source: He et al. 2022, Towards a Unified View of Parameter-Efficient Transfer Learning; reduction 2 and s = 4 as in
AdapterHub's ``ParBnConfig`` and SPEC section 1.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from fedpeft.core.errors import FedpeftError
from fedpeft.methods.bottleneck.config import BottleneckConfig, is_number
from fedpeft.methods.bottleneck.layer import BottleneckLayer
from fedpeft.methods.bottleneck.model import BottleneckModel
from fedpeft.methods.bottleneck.module import Bottleneck, Projection
from fedpeft.methods.bottleneck.tuning import BottleneckTuning
from fedpeft.methods.first_values import Constant, Drawn
from fedpeft.methods.peft_types import register


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
TUNING = BottleneckTuning(ParallelConfig)

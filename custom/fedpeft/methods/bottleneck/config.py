# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The bottleneck (a down-projection, an activation and an up-projection) and the settings of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from peft import PeftConfig
from peft.utils.peft_types import PeftType
from torch import nn
from torch.nn import functional as F

from fedpeft.backbones.slots import slot_templates
from fedpeft.backbones.structure import check_targets
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import is_finite, is_whole
from fedpeft.methods.first_values import Constant, Drawn, Normal, key_generator
from fedpeft.methods.setting_limits import MIN_REDUCTION

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": F.relu, "swish": F.silu, "gelu": F.gelu}


class Projection(nn.Linear):
    """A linear layer whose weights are set by the adapter's own initialization."""

    def reset_parameters(self) -> None:
        """Do nothing: torch would draw from the global generator."""


class Bottleneck(nn.Module):
    """One adapter at one place: `up(act(down(norm(h))))`; the layer around it adds the result to its output.

    Args:
        down: projection from the hidden width d to the bottleneck width r.
        up: projection from r to d.
        activation: key of `ACTIVATIONS`.
        norm: the adapter's own LayerNorm, applied to h first.
        scaling: factor of the result when the layer adds it.

    Source: Houlsby et al. 2019, section 2.1 (without the residual, which the layer adds).
    """

    def __init__(
        self, down: nn.Module, up: nn.Module, activation: str, *, norm: nn.LayerNorm | None = None, scaling: float = 1.0
    ) -> None:
        super().__init__()
        self.norm = norm
        self.down = down
        self.up = up
        self.scaling = scaling
        self.activation = activation
        self.activate = ACTIVATIONS[activation]

    @property
    def kind(self) -> tuple:
        """Bottlenecks of one kind without a LayerNorm differ only in their weights and can be fused."""
        return self.norm is None, self.activation, self.scaling, self.down.bias.dtype

    def hidden(self, h: torch.Tensor) -> torch.Tensor:
        """Return the activations of the bottleneck's neurons: (..., d) -> (..., r)."""
        if self.norm is not None:
            h = self.norm(h)
        return self.activate(self.down(h))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Return what the adapter adds to the residual stream: (..., d) -> (..., d)."""
        return self.up(self.hidden(h))


def add_branches(
    output: torch.Tensor, h: torch.Tensor, bottlenecks: Sequence[Bottleneck], weights: Sequence[float]
) -> torch.Tensor:
    """Return `output + sum_k weight_k scaling_k up_k(act(down_k(norm_k(h))))`, output and h (..., d).

    Bottlenecks of one kind are computed as one with all neurons: a second one needs no further pass over the tokens.
    """
    first, alike = bottlenecks[0], len(set(weights)) == 1
    if len(bottlenecks) > 1 and alike and first.norm is None and all(other.kind == first.kind for other in bottlenecks):
        down_weight = torch.cat([each.down.weight for each in bottlenecks])
        down_bias = torch.cat([each.down.bias for each in bottlenecks])
        up_weight = torch.cat([each.up.weight for each in bottlenecks], dim=1)
        up_bias = sum(each.up.bias for each in bottlenecks)
        hidden = first.activate(F.linear(h.to(down_weight.dtype), down_weight, down_bias))
        branch = F.linear(hidden, up_weight, up_bias)
        return torch.add(output, branch.to(output.dtype), alpha=first.scaling * weights[0])
    for each, weight in zip(bottlenecks, weights, strict=True):
        branch = each(h.to(each.down.bias.dtype))
        output = torch.add(output, branch.to(output.dtype), alpha=each.scaling * weight)
    return output


@dataclass(kw_only=True)
class BottleneckConfig(PeftConfig):
    """Settings of a bottleneck adapter of width `r = hidden_size // reduction_factor` in some slots of each layer.

    Args:
        target_modules: role -> module path with `{layer}`; or, as PEFT has them, a list of module names or a pattern
            of their paths. None takes the method's roles from `SLOTS` by the model's `model_type`.
        layers: transformer layers that get an adapter, counted from 0; None for all.
        reduction_factor: hidden width over bottleneck width.
        layer_widths: layer -> bottleneck width r, if it differs from that of the reduction factor.
        activation: "relu", "swish" or "gelu".
        init_seed: each initial weight depends only on this seed and its own key.
        modules_to_save: names of other modules to train and save with the adapter, such as a head.

    Raises:
        FedpeftError: a value is out of its range.
    """

    method: ClassVar[str]
    roles: ClassVar[tuple[str, ...]]

    target_modules: dict[str, str] | list[str] | str | None = None
    layers: list[int] | None = None
    reduction_factor: float = 16
    layer_widths: dict[int, int] | None = None
    activation: str = "relu"
    init_seed: int = 0
    modules_to_save: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType(self.method.upper())
        if self.target_modules is not None:
            check_targets(self.target_modules, self.method)
        if self.layers is not None:
            if isinstance(self.layers, str) or not isinstance(self.layers, Iterable) or not list(self.layers):
                raise FedpeftError(
                    f"{self.method}: layers={self.layers!r} must be a list that is not empty, or None for all."
                )
            self.layers = sorted({self._integer("layers", layer, 0) for layer in self.layers})
        if not is_finite(self.reduction_factor) or not self.reduction_factor >= MIN_REDUCTION:
            raise FedpeftError(
                f"{self.method}: reduction_factor={self.reduction_factor!r} must be a number of at least "
                f"{MIN_REDUCTION}."
            )
        if self.layer_widths is not None:
            if not isinstance(self.layer_widths, dict):
                raise FedpeftError(
                    f"{self.method}: layer_widths={self.layer_widths!r} must map layers to widths, such as {{0: 8}}."
                )
            # JSON writes the layer numbers as strings
            widths = {int(key) if str(key).isdigit() else key: width for key, width in self.layer_widths.items()}
            for layer, width in widths.items():
                self._integer("layer_widths", layer, 0)
                self._integer(f"layer_widths[{layer}]", width, 1)
            self.layer_widths = widths
        if self.activation not in ACTIVATIONS:
            raise FedpeftError(
                f"{self.method}: activation={self.activation!r} is unknown: choose one of {', '.join(ACTIVATIONS)}."
            )
        self._integer("init_seed", self.init_seed, 0)

    def templates(self, family: str | None) -> dict[str, str]:
        """Return role -> module path template: the configuration's own, or the family's for this method's roles."""
        if isinstance(self.target_modules, dict):
            return dict(self.target_modules)
        if self.target_modules is not None:
            raise FedpeftError(
                f"{self.method}: target_modules={self.target_modules!r} has to be looked up in a model: attach the "
                "adapter to one first, which writes the paths into this configuration, or write role -> path."
            )
        if family is None:
            raise FedpeftError(f"{self.method}: give the model family (model_type, such as 'vilt') or target_modules.")
        return slot_templates(family, self.roles)

    def width(self, hidden_size: int, layer: int) -> int:
        """Return the bottleneck width r of one layer; refuse a reduction without any neuron left."""
        width = (self.layer_widths or {}).get(layer, int(hidden_size // self.reduction_factor))
        if width < 1:
            raise FedpeftError(
                f"{self.method}: reduction_factor={self.reduction_factor} leaves no neuron of hidden width "
                f"{hidden_size}: use at most {hidden_size}."
            )
        return width

    def tensor_shapes(self, hidden_size: int, width: int) -> dict[str, tuple[int, ...]]:
        """Return tensor name -> shape of the adapter at one place."""
        return {
            "down.weight": (width, hidden_size),
            "down.bias": (width,),
            "up.weight": (hidden_size, width),
            "up.bias": (hidden_size,),
        }

    def shared_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return tensor name -> shape of the tensors that all places share; only Compacter has any."""
        return {}

    def first_values(self, name: str, shape: tuple[int, ...]) -> Drawn:
        """Return the first values of a tensor ("down.weight", …): weights N(0, 0.02^2), biases 0, LayerNorm gains 1."""
        if name.endswith("bias"):
            return Constant()
        return Constant(1.0) if name == "norm.weight" else Normal(0.02)

    def initial_tensor(self, name: str, shape: tuple[int, ...], key: str) -> torch.Tensor:
        """Return the initial value of one tensor, float32 on the CPU; it depends only on `init_seed` and its key."""
        return self.first_values(name, shape).drawn(shape, key_generator(self.init_seed, key))

    def _integer(self, name: str, value: object, minimum: int) -> int:
        if not is_whole(value) or value < minimum:
            raise FedpeftError(f"{self.method}: {name}={value!r} must be an integer of at least {minimum}.")
        return value

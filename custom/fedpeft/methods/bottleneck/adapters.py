# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The bottleneck adapters: Houlsby, Pfeiffer, Parallel and Compacter.

houlsby    after the attention and after the feed-forward block: `h -> h + up(swish(down(h)))`
           Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP; AdapterHub's `DoubleSeqBnConfig`
pfeiffer   after the feed-forward block only: `h -> h + up(relu(down(h)))`
           Pfeiffer et al. 2021, AdapterFusion (the bottleneck under the fusion); AdapterHub's `SeqBnConfig`
parallel   beside the feed-forward block: `output = block(x) + s * up(relu(down(x)))`
           He et al. 2022, Towards a Unified View of Parameter-Efficient Transfer Learning; `ParBnConfig`
compacter  Houlsby's places; each projection is a sum of Kronecker products (PHM layer)
           Karimi Mahabadi et al. 2021, Compacter; first values as in the authors' code

Swish, ReLU, reductions 16, 16, 2 and s = 4 are AdapterHub's. Parallel's x is the residual stream that enters the
block: the last positional tensor of the wrapped module's call (`ViltOutput(hidden_states, input_tensor)`: its
second).

    H = sum_i kron(rule[i], left[i] @ right[i])    (in, out)        y = x H + bias

Compacter has one `rule` (n, n, n) for the whole model, n = 4, rank 1, GELU, reduction 32. The tuner stores it, once per
adapter name; every layer looks it up there, so that it is counted, trained, saved and sent once. First values:
Glorot uniform for each left[i] and right[i], N(0, rule_std^2) for the rule, biases 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import is_finite
from fedpeft.methods.bottleneck.config import Bottleneck, BottleneckConfig, Projection
from fedpeft.methods.bottleneck.layer import BottleneckLayer
from fedpeft.methods.bottleneck.model import BottleneckModel
from fedpeft.methods.bottleneck.tuning import BottleneckTuning
from fedpeft.methods.first_values import Constant, Drawn, Normal, Uniform
from fedpeft.methods.peft_types import register


@dataclass(kw_only=True)
class HoulsbyConfig(BottleneckConfig):
    """Settings of Houlsby adapters; see `BottleneckConfig`."""

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
    """Settings of Pfeiffer adapters; see `BottleneckConfig` for the others.

    Args:
        layer_norm: give the adapter its own LayerNorm before the down-projection: `h + up(relu(down(LN(h))))`.
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
    """Settings of parallel adapters; see `BottleneckConfig` for the others.

    Args:
        scaling: the factor s.
    """

    method: ClassVar[str] = "parallel"
    roles: ClassVar[tuple[str, ...]] = ("output",)

    reduction_factor: float = 2
    scaling: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_finite(self.scaling):
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


@dataclass(kw_only=True)
class CompacterConfig(BottleneckConfig):
    """Settings of Compacter; see `BottleneckConfig` for the others.

    Args:
        blocks: number n of Kronecker terms; divides the hidden and the bottleneck width.
        rank: rank of left[i] @ right[i].
        rule_std: standard deviation of the rule's initial values.
    """

    method: ClassVar[str] = "compacter"
    roles: ClassVar[tuple[str, ...]] = ("attention", "output")

    reduction_factor: float = 32
    activation: str = "gelu"
    blocks: int = 4
    rank: int = 1
    rule_std: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        self._integer("blocks", self.blocks, 1)
        self._integer("rank", self.rank, 1)
        if not is_finite(self.rule_std) or self.rule_std <= 0:
            raise FedpeftError(f"compacter: rule_std={self.rule_std!r} must be a number above 0.")

    def width(self, hidden_size: int, layer: int) -> int:
        width = super().width(hidden_size, layer)
        for name, value in (("hidden width", hidden_size), ("bottleneck width", width)):
            if value % self.blocks:
                raise FedpeftError(
                    f"compacter: the {name} {value} of layer {layer} is not a multiple of blocks={self.blocks}: "
                    "choose another reduction_factor, layer_widths or blocks."
                )
        return width

    def tensor_shapes(self, hidden_size: int, width: int) -> dict[str, tuple[int, ...]]:
        n, d, r = self.blocks, hidden_size // self.blocks, width // self.blocks
        return {
            "down.left": (n, d, self.rank),
            "down.right": (n, self.rank, r),
            "down.bias": (width,),
            "up.left": (n, r, self.rank),
            "up.right": (n, self.rank, d),
            "up.bias": (hidden_size,),
        }

    def shared_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"rule": (self.blocks,) * 3}

    def first_values(self, name: str, shape: tuple[int, ...]) -> Drawn:
        if name == "rule":
            return Normal(self.rule_std)
        if name.endswith(("left", "right")):  # Glorot's, of the matrices in the last two axes
            return Uniform((6.0 / max(1, sum(shape[-2:]))) ** 0.5)
        return super().first_values(name, shape)


def phm_weight(rule: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the transpose of `H = sum_i kron(rule[i], left[i] @ right[i])`, (out, in), as `F.linear` takes it.

    Of rule (n, n, n), left (n, in/n, rank) and right (n, rank, out/n). Source: Compacter, equations 3 and 5.
    """
    n, rows, columns = rule.shape[1], left.shape[1], right.shape[2]
    blocks = rule.flatten(1).T @ (left @ right).flatten(1)  # (n*n, rows*columns)
    return blocks.view(n, n, rows, columns).permute(1, 3, 0, 2).reshape(n * columns, n * rows)


class PHMProjection(nn.Module):
    """A linear layer with the weight of `phm_weight`; the rule is looked up in `shared["rule"]`."""

    def __init__(
        self, in_features: int, out_features: int, config: CompacterConfig, shared: Mapping[str, torch.Tensor]
    ) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.empty(config.blocks, in_features // config.blocks, config.rank))
        self.right = nn.Parameter(torch.empty(config.blocks, config.rank, out_features // config.blocks))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.set_shared(shared)

    def set_shared(self, shared: Mapping[str, torch.Tensor]) -> None:
        # in a tuple, or torch would count the rule as a parameter of every layer
        self._shared = (shared,)

    @property
    def weight(self) -> torch.Tensor:
        return phm_weight(self._shared[0]["rule"].to(self.left), self.left, self.right)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class CompacterLayer(BottleneckLayer):
    adapter_layer_names = ("compacter_adapter",)

    def __init__(self, base_layer: nn.Module, role: str, layer_index: int, shared: nn.ModuleDict) -> None:
        super().__init__(base_layer, role, layer_index)
        self._shared = (shared,)  # the tuner's; in a tuple for the same reason as in PHMProjection

    def build_adapter(self, config: CompacterConfig, hidden_size: int, width: int, adapter_name: str) -> Bottleneck:
        shared = self._shared[0][adapter_name]
        down = PHMProjection(hidden_size, width, config, shared)
        return Bottleneck(down, PHMProjection(width, hidden_size, config, shared), config.activation)

    def probe(
        self, adapter_name: str, tensors: Mapping[str, torch.Tensor], shared: Mapping[str, torch.Tensor]
    ) -> Bottleneck:
        bottleneck = super().probe(adapter_name, tensors, shared)
        if "rule" not in shared:
            raise FedpeftError("the adapter state lacks 'shared.rule': a compacter state has one.")
        for projection in (bottleneck.down, bottleneck.up):
            projection.set_shared({"rule": shared["rule"].detach()})
        return bottleneck

    def shared_parameters(self, adapter_name: str) -> dict[str, nn.Parameter]:
        return dict(self._shared[0][adapter_name].items())


class CompacterModel(BottleneckModel):
    """The PEFT tuner, which owns the rules: `compacter_shared.<adapter name>.rule`, (n, n, n) each."""

    uses_shared_state = True
    prefix = "compacter_"
    tuner_layer_cls = CompacterLayer

    def _pre_injection_hook(self, model: nn.Module, config: CompacterConfig, adapter_name: str) -> None:
        self.compacter_shared = nn.ModuleDict()

    def build_layer(self, base_layer: nn.Module, role: str, layer: int) -> CompacterLayer:
        return CompacterLayer(base_layer, role, layer, self.compacter_shared)

    def inject_adapter(self, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any) -> None:
        # PEFT keeps requires_grad of the adapters that exist, but it only looks inside the backbone
        trainable = {name: shared["rule"].requires_grad for name, shared in self.compacter_shared.items()}
        super().inject_adapter(model, adapter_name, *args, **kwargs)
        for name, flag in trainable.items():
            self.compacter_shared[name].requires_grad_(flag)

    def _create_and_replace(
        self, peft_config: CompacterConfig, adapter_name: str, target: nn.Module, *args: Any, **kwargs: Any
    ) -> None:
        if adapter_name not in self.compacter_shared:
            rule = peft_config.initial_tensor("rule", peft_config.shared_shapes()["rule"], "shared.rule")
            device = next((p.device for p in target.parameters()), rule.device)
            self.compacter_shared[adapter_name] = nn.ParameterDict({"rule": nn.Parameter(rule.to(device))})
        super()._create_and_replace(peft_config, adapter_name, target, *args, **kwargs)

    def set_adapter(self, adapter_name: str | list[str], inference_mode: bool = False) -> None:
        super().set_adapter(adapter_name, inference_mode=inference_mode)
        for name, shared in self.compacter_shared.items():
            shared.requires_grad_(name in self.active_adapters and not inference_mode)

    def set_requires_grad(self, adapter_names: str | Sequence[str], requires_grad: bool = True) -> None:
        super().set_requires_grad(adapter_names, requires_grad)
        for name in [adapter_names] if isinstance(adapter_names, str) else adapter_names:
            self.compacter_shared[name].requires_grad_(requires_grad)

    def delete_adapter(self, adapter_name: str) -> None:
        was_active = adapter_name in self.active_adapters
        super().delete_adapter(adapter_name)
        del self.compacter_shared[adapter_name]
        if was_active:  # PEFT's layers make the adapters that are active now trainable; so must the rule be
            for name in self.active_adapters:
                self.compacter_shared[name].requires_grad_(True)


register("compacter", CompacterConfig, CompacterModel)
COMPACTER = BottleneckTuning(CompacterConfig)

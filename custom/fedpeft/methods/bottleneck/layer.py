# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The wrapper that replaces a module of the backbone and adds the adapters' outputs to the module's output."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import place_of
from fedpeft.methods.bottleneck.config import Bottleneck, BottleneckConfig, Projection, add_branches


class BottleneckLayer(nn.Module, BaseTunerLayer):
    """A module of the backbone with adapters: `output + mean_k scaling_k * up_k(act(down_k(input)))`.

    The mean is over the active adapters that have a bottleneck at this place. With one active adapter this is the
    plain adapter of the papers; with two it is FedPIA read as two branches, and the dual form of FedDAT. A `fusion`
    replaces the mean (AdapterFusion). The role is the slot: its name in `target_modules` and in keys.
    """

    def __init__(self, base_layer: nn.Module, role: str, layer_index: int) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.role = role
        self.layer_index = layer_index
        self.merged_adapters = []
        self.weights: dict[str, float] = {}  # by adapter, in the sum of outputs; empty: their mean
        self.fusion: nn.Module | None = None  # from the input and the outputs of several active adapters to one output
        setattr(self, self.adapter_layer_names[0], nn.ModuleDict())

    @property
    def adapters(self) -> nn.ModuleDict:
        return self._modules[self.adapter_layer_names[0]]

    @property
    def place(self) -> str:
        """Layer and slot, the beginning of its keys, for instance `layer.3.output`."""
        return place_of(self.layer_index, self.role)

    def build_adapter(self, config: BottleneckConfig, hidden_size: int, width: int, adapter_name: str) -> Bottleneck:
        """Return a new adapter module with undefined weights."""
        return Bottleneck(Projection(hidden_size, width), Projection(width, hidden_size), config.activation)

    @classmethod
    def check_module(cls, module: nn.Module, path: str, hidden_size: int) -> None:
        """Refuse a module that this kind of adapter cannot wrap; only Parallel refuses any."""

    def shared_parameters(self, adapter_name: str) -> dict[str, nn.Parameter]:
        """Return tensor name -> parameter that this adapter shares between its places; only Compacter has any."""
        return {}

    def update_layer(self, adapter_name: str, config: BottleneckConfig, hidden_size: int) -> None:
        """Add an adapter with its initial weights, on the device and in the dtype of the wrapped module."""
        adapter = self.build_adapter(config, hidden_size, config.width(hidden_size, self.layer_index), adapter_name)
        with torch.no_grad():
            for name, parameter in adapter.named_parameters():
                if not parameter.is_meta:
                    parameter.copy_(config.initial_tensor(name, tuple(parameter.shape), f"{self.place}.{name}"))
        self.adapters[adapter_name] = adapter
        self._move_adapter_to_device_of_base_layer(adapter_name)

    def probe(
        self, adapter_name: str, tensors: Mapping[str, torch.Tensor], shared: Mapping[str, torch.Tensor]
    ) -> Bottleneck:
        """Return a copy of one adapter with other weights, of any width, outside the model.

        `tensors` are those of the place, for instance "down.weight" (r, d); `shared` those that all places share.
        """
        bottleneck = copy.deepcopy(self.adapters[adapter_name]).requires_grad_(False)
        own = dict(bottleneck.named_parameters())
        if set(tensors) != set(own) or tensors["up.bias"].shape != own["up.bias"].shape:
            raise FedpeftError(
                f"the adapter state at {self.place} has {', '.join(sorted(tensors))} and hidden width "
                f"{tuple(tensors.get('up.bias', torch.empty(0)).shape)}; the model has {', '.join(sorted(own))} "
                f"and {tuple(own['up.bias'].shape)}: use the same method and backbone."
            )
        for name, tensor in tensors.items():
            owner, _, leaf = name.rpartition(".")
            values = nn.Parameter(tensor.detach().to(own[name]), requires_grad=False)
            setattr(bottleneck.get_submodule(owner), leaf, values)
        return bottleneck

    def branch_input(self, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        """Return the adapters' input: the wrapped module's output, or the result of its own `adapter_input`."""
        reads = getattr(self.base_layer, "adapter_input", None)
        return output if reads is None else reads(args, output)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = self.base_layer(*args, **kwargs)
        if self._disable_adapters:
            return result
        adapters = self.adapters
        names = [name for name in self.active_adapters if name in adapters]
        if not names:
            return result
        active = [adapters[name] for name in names]
        weights = [self.weights.get(name, 1 / len(names)) for name in names] if len(names) > 1 else [1.0]
        output = result[0] if isinstance(result, tuple) else result
        h = self.branch_input(args, output)
        if self.fusion is not None and len(active) > 1:
            branches = [each.scaling * each(h.to(each.down.bias.dtype)) for each in active]
            output = output + self.fusion(h.to(branches[0].dtype), branches).to(output.dtype)
        else:
            output = add_branches(output, h, active, weights)
        return (output, *result[1:]) if isinstance(result, tuple) else output

    def use(self, names: Iterable[str]) -> None:
        """Make these adapters the active ones; unlike PEFT's `set_adapter` this does not change `requires_grad`."""
        self._active_adapter = list(names)

    def enable_adapters(self, enabled: bool) -> None:
        """Switch all adapters on or off without changing `requires_grad`.

        PEFT's own method makes every active adapter trainable when it is switched on again, the frozen ones included.
        """
        self._disable_adapters = not enabled

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        raise_cannot_merge(type(self).__name__)

    def unmerge(self) -> None:
        raise_cannot_merge(type(self).__name__)

    def _get_base_layer_device_and_dtype(self, base_layer: nn.Module) -> tuple[torch.device | None, torch.dtype | None]:
        # PEFT looks for base_layer.weight, which a block such as ViltOutput does not have
        for parameter in base_layer.parameters():
            if parameter.is_floating_point():
                return parameter.device, parameter.dtype
        return None, None


def raise_cannot_merge(name: str) -> None:
    """Refuse to merge a bottleneck, which is not linear."""
    raise FedpeftError(
        f"{name} cannot be merged into the backbone, because its bottleneck is not linear: "
        "keep the adapter, or remove it with unload()."
    )

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Several bottleneck adapters of one configuration side by side in a frozen backbone, some of them active at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from fedpeft.backbones.backbone import Backbone
from fedpeft.core.states import State
from fedpeft.methods.adapters import adapter_parameters, adapter_slots, adapter_state, attach, load_adapter_state
from fedpeft.methods.bottleneck.layer import BottleneckLayer

if TYPE_CHECKING:
    from fedpeft.methods.bottleneck.tuning import BottleneckTuning


class Branches:
    """Adapters by name, each with its seed and tensors of its own; what the active ones add is averaged, or fused."""

    def __init__(
        self, backbone: Backbone, tuning: BottleneckTuning, settings: Mapping[str, Any], seeds: Mapping[str, int]
    ) -> None:
        backbone.requires_grad_(False)
        self._peft: nn.Module = backbone.model
        for name, seed in seeds.items():
            self._peft = attach(self._peft, tuning.config(tuning.seeded(settings, seed)), name)
        self._peft.requires_grad_(False)
        self._first = next(iter(seeds))

    def parameters(self, name: str) -> dict[str, nn.Parameter]:
        return adapter_parameters(self._peft, name)

    def slots(self) -> dict[str, str]:
        return adapter_slots(self._peft, self._first)

    def state(self, name: str) -> State:
        return adapter_state(self._peft, name)

    def load(self, name: str, state: State) -> None:
        load_adapter_state(self._peft, state, name)

    def use(self, *names: str) -> None:
        """Make these adapters the active ones, and leave what trains as it is."""
        for layer in self.layers():
            layer.use(names)

    def layers(self) -> Iterator[BottleneckLayer]:
        return (module for module in self._peft.modules() if isinstance(module, BottleneckLayer))

    def fusions(self) -> dict[str, nn.Parameter]:
        """Return by key the parameters that fuse the active adapters; empty where they are averaged."""
        return {
            f"{layer.place}.fusion.{name}": parameter
            for layer in self.layers()
            if layer.fusion is not None
            for name, parameter in layer.fusion.named_parameters()
        }

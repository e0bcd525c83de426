# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What is trained beside the head: adapters, nothing, or the whole backbone, behind one interface."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import nn

from fedpeft import adapters
from fedpeft.adapters.state import adapter_parameters
from fedpeft.training.assignment import belongs
from fedpeft.training.settings import MethodSettings

State = dict[str, torch.Tensor]
OWN, COMPANION = "default", "global"


class Body(Protocol):
    """The trained part of a backbone."""

    def state(self) -> State:
        """Copies of its tensors on the CPU, by wire key."""

    def load(self, state: State) -> None:
        """Put such tensors back."""

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Everything that could be trained, by wire key."""

    def train_only(self, layers: Sequence[int] | None) -> None:
        """Freeze all but these transformer layers; None: train everything."""


def build_body(backbone: nn.Module, method: MethodSettings, *, site: str, seed: int) -> Body:
    """Prepare a backbone for what the method trains; everything else is frozen.

    Args:
        backbone: as `fedpeft.backbones.build` returns it; adapters are injected in place.
        method: its `trains` decides.
        site: whose adapter settings apply.
        seed: source of the adapters' first values.
    """
    if method.trains == "all":
        return WholeBody(backbone)
    backbone.requires_grad_(False)
    if method.trains == "head":
        return NoBody()
    return AdapterBody(backbone, method.adapter, method.adapter_settings_of(site), seed=seed)


def parameter_count(backbone: nn.Module, method: MethodSettings, *, site: str) -> int:
    """How many parameters `build_body` would train; found on the meta device, where they take no memory.

    Args:
        backbone: stays as it is.
        method, site: as in `build_body`.
    """
    tensors = (*backbone.parameters(), *backbone.buffers())
    shapes = {id(tensor): torch.empty_like(tensor, device="meta", requires_grad=False) for tensor in tensors}
    shapes |= {id(parameter): nn.Parameter(shapes[id(parameter)]) for parameter in backbone.parameters()}
    with torch.device("meta"):
        body = build_body(copy.deepcopy(backbone, shapes), method, site=site, seed=0)
    return sum(parameter.numel() for parameter in body.parameters().values())


class NoBody:
    """The classifier alone is trained."""

    def state(self) -> State:
        """No tensors."""
        return {}

    def load(self, state: State) -> None:
        """Nothing to put back."""

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """No parameters."""
        return {}

    def train_only(self, layers: Sequence[int] | None) -> None:
        """Nothing to freeze."""


class WholeBody:
    """Every parameter of the backbone is trained; keys are `backbone.<parameter>`."""

    def __init__(self, backbone: nn.Module) -> None:
        self._model = backbone.model

    def state(self) -> State:
        """All parameters."""
        return {name: parameter.detach().cpu().clone() for name, parameter in self.parameters().items()}

    def load(self, state: State) -> None:
        """Put all parameters back."""
        with torch.no_grad():
            for name, parameter in self.parameters().items():
                parameter.copy_(state[name])

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """All parameters."""
        return {f"backbone.{name}": parameter for name, parameter in self._model.named_parameters()}

    def train_only(self, layers: Sequence[int] | None) -> None:
        """Freeze all but these layers; embeddings and pooler, which belong to none, train only with everything."""
        for name, parameter in self.parameters().items():
            parameter.requires_grad_(belongs(name, layers))


class AdapterBody:
    """PEFT adapters in a frozen backbone, and, for FedPIA's `frozen_global`, a frozen companion beside them.

    Args:
        backbone: the frozen backbone.
        name: one of `fedpeft.adapters.names()`.
        settings: of that adapter.
        seed: source of its first values.
    """

    def __init__(self, backbone: nn.Module, name: str, settings: dict, *, seed: int) -> None:
        seeded = {"init_seed": seed} if name != "lora" else {}
        self._config = adapters.config(name, **settings, **seeded)
        self._backbone = backbone
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # PEFT draws LoRA's first values from the global generator
            self._peft = adapters.attach(backbone.model, self._config, OWN)

    def state(self) -> State:
        """The site's own adapter."""
        return adapters.adapter_state(self._peft, OWN)

    def load(self, state: State) -> None:
        """Replace the site's own adapter."""
        adapters.load_adapter_state(self._peft, state, OWN)

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The parameters of the site's own adapter."""
        return adapter_parameters(self._peft, OWN)

    def train_only(self, layers: Sequence[int] | None) -> None:
        """Freeze all adapters but these layers of the own one."""
        adapters.set_trainable_layers(self._peft, layers, OWN)

    def set_companion(self, state: State | None) -> None:
        """Put a frozen adapter beside the own one, output = mean of the two; None: the own one alone."""
        active = [OWN]
        if state is not None:
            if COMPANION not in self._peft.peft_config:
                self._peft.add_adapter(COMPANION, self._config)
                self._peft.to(next(self._backbone.parameters()).device)
            adapters.load_adapter_state(self._peft, state, COMPANION)
            active.append(COMPANION)
        self._peft.base_model.set_adapter(active)
        self.train_only(None)

    def activations(self, states: Sequence[State], inputs: Sequence[dict[str, torch.Tensor]]) -> list[dict]:
        """Token-averaged hidden activations (m, r) of several adapters on the same inputs, by `layer.<l>.<site>`."""
        return adapters.hidden_activations(self._backbone, states, inputs, adapter_name=OWN)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""An adapter in a frozen backbone, and, for FedPIA's `frozen_global`, a frozen companion beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedpeft.backbones.backbone import Backbone
from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import State
from fedpeft.methods.adapter_config import tuning_of
from fedpeft.methods.adapters import (
    adapter_parameters,
    adapter_slots,
    adapter_state,
    attach,
    load_adapter_state,
    set_trainable_layers,
)
from fedpeft.methods.products import Product
from fedpeft.methods.trainable import Beside, Trainable

if TYPE_CHECKING:
    from peft import PeftConfig

OWN, COMPANION = "default", "global"


class AdapterTrainable(Trainable):
    """An adapter in a frozen backbone; `seed` is that of initial values that PEFT draws."""

    def __init__(self, backbone: Backbone, config: PeftConfig, *, seed: int) -> None:
        self._config, self._backbone = config, backbone
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # PEFT draws LoRA's initial values from the global generator
            self._peft = attach(backbone.model, self._config, OWN)
        self._parameters = adapter_parameters(self._peft, OWN)
        self._share: float | None = None  # of the companion, where one is active

    def state(self) -> State:
        return adapter_state(self._peft, OWN)

    def load(self, state: State) -> None:
        load_adapter_state(self._peft, state, OWN)

    def slots(self) -> dict[str, str]:
        return adapter_slots(self._peft, OWN)

    def parameters(self) -> Mapping[str, nn.Parameter]:
        return self._parameters

    def train_only(self, layers: Sequence[int] | None) -> None:
        set_trainable_layers(self._peft, layers, OWN)

    def products(self) -> Mapping[str, Product]:
        return tuning_of(self._config).products(self._peft, OWN)

    def set_companion(self, state: State | None, share: float = 0.5) -> None:
        active = [OWN]
        self._share = None if state is None else share
        if state is not None:
            if COMPANION not in self._peft.peft_config:
                self._peft.add_adapter(COMPANION, self._config)
                self._peft.to(next(self._backbone.parameters()).device)
            load_adapter_state(self._peft, state, COMPANION)
            active.append(COMPANION)
            tuning_of(self._config).mix(self._peft, {OWN: 1 - share, COMPANION: share})
        self._peft.base_model.set_adapter(active)
        self.train_only(None)

    def beside(self) -> Beside:
        return Beside({}) if self._share is None else Beside(adapter_state(self._peft, COMPANION), self._share)

    def restore(self, state: State, beside: Beside) -> None:
        self.load(state)
        self.set_companion(beside.state or None, beside.share)

    def peft_config(self) -> PeftConfig:
        return self._config

    def merge(self) -> None:
        try:
            self._peft.merge_and_unload()
        except (AttributeError, NotImplementedError, TypeError) as error:
            raise FedpeftError(f"PEFT cannot merge this adapter ({error!r:.120}): keep it.") from error
        self._parameters = {}

    def activations(
        self, states: Sequence[State], inputs: Sequence[Mapping[str, torch.Tensor]]
    ) -> list[dict[str, torch.Tensor]]:
        return tuning_of(self._config).activations(self._backbone, states, inputs, OWN)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Methods that are PEFT tuners with tensors in slots of the layers: configuration, shapes, parameters and names."""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedpeft.alignment.factors import Product
from fedpeft.backbones.backbone import Backbone
from fedpeft.core.errors import FedpeftError
from fedpeft.core.seeds import draws_restored
from fedpeft.core.settings import expected, fits, one_of
from fedpeft.core.states import State
from fedpeft.methods import adapters
from fedpeft.methods.trainable import Beside, Trainable, Tuning

if TYPE_CHECKING:
    from peft import PeftConfig


# PEFT's settings to train other tensors than an adapter's, or to add layers to the backbone
_BACKBONE_SETTINGS = ("bias", "lora_bias", "modules_to_save", "trainable_token_indices", "layer_replication")
_FACTORS = ("lora_alpha", "scaling", "d_initial")  # of what an adapter adds
LOCAL, COMPANION = "default", "global"


class AdapterTrainable(Trainable):
    """An adapter in a frozen backbone; `seed` is for initial values that PEFT draws."""

    def __init__(self, backbone: Backbone, config: PeftConfig, *, seed: int) -> None:
        self._config, self._backbone = config, backbone
        self._asked = copy.copy(config)  # `attach` writes the modules into the other
        with draws_restored(seed):  # PEFT draws LoRA's initial values from the global generator
            self._peft = adapters.attach(backbone.model, self._config, LOCAL)
        self._parameters = adapters.adapter_parameters(self._peft, LOCAL)
        self._share: float | None = None  # of the companion, where one is active

    def state(self) -> State:
        return adapters.adapter_state(self._peft, LOCAL)

    def load(self, state: State) -> None:
        adapters.load_adapter_state(self._peft, state, LOCAL)

    def slots(self) -> dict[str, str]:
        return adapters.adapter_slots(self._peft, self._asked, LOCAL)

    def parameters(self) -> Mapping[str, nn.Parameter]:
        return self._parameters

    def train_only(self, layers: Sequence[int] | None) -> None:
        adapters.set_trainable_layers(self._peft, layers, LOCAL)

    def products(self) -> Mapping[str, Product]:
        return adapters.tuning_of(self._config).products(self._peft, LOCAL)

    def changed_by(self) -> str:
        named = sorted(adapters.tuning_of(self._config).starts(self._config) - {"r"})
        return " and ".join(f"{name}={getattr(self._config, name)!r:.80}" for name in named)

    def started_by(self) -> str:
        name = adapters.tuning_of(self._config).start
        value = getattr(self._config, name) if name else True
        return "" if value is True else f"{name}={value!r:.80}"

    def set_companion(self, state: State | None, share: float = 0.5) -> None:
        active = [LOCAL]
        self._share = None if state is None else share
        if state is not None:
            if COMPANION not in self._peft.peft_config:
                self._peft.add_adapter(COMPANION, self._config)
                self._peft.to(next(self._backbone.parameters()).device)
            adapters.load_adapter_state(self._peft, state, COMPANION)
            active.append(COMPANION)
            adapters.tuning_of(self._config).mix(self._peft, {LOCAL: 1 - share, COMPANION: share})
        self._peft.base_model.set_adapter(active)
        self.train_only(None)

    def beside(self) -> Beside:
        return Beside({}) if self._share is None else Beside(adapters.adapter_state(self._peft, COMPANION), self._share)

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
        return adapters.tuning_of(self._config).activations(self._backbone, states, inputs, LOCAL)


_PEFTS_OWN = ("peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision")
Shapes = dict[str, tuple[int, ...]]
Parameters = dict[str, nn.Parameter]


class SlotTuning(Tuning, ABC):
    """The code of a method that is a PEFT tuner; `config_cls` is its PEFT configuration.

    `min_values`: by setting, the smallest whole number that PEFT can build with, if PEFT itself would fail on less.
    `start`: the setting of the first values, true by default; empty: it has none.
    `may_differ`: the settings in which adapters that `fedpeft merge` combines may differ.
    Some tuners have more functions; a caller refuses a tuner without them, or the method's registration rules it out:

    shapes(config, family, num_layers, hidden_size)   key -> shape of an adapter, without a model
    first_state(config, shapes)                       the values that `get_peft_model` starts from
    activations(model, states, inputs, adapter_name)  see `Trainable.activations`
    mix(model, weights)                               weigh what several active adapters of a PEFT model add, by name
    """

    name: str  # of its registration; of fedpeft's own tuners also the PEFT type in lower case
    min_values: Mapping[str, int] = {"layers_to_transform": 0}
    start: str = ""
    may_differ: frozenset[str] = frozenset(
        # PEFT itself corrects `fan_in_fan_out` by the class of the module
        {*_PEFTS_OWN, "task_type", "inference_mode", "target_modules", "init_seed", "fan_in_fan_out"}
    )

    def __init__(self, config_cls: type[PeftConfig]) -> None:
        self.config_cls = config_cls

    def matches(self, config: PeftConfig) -> bool:
        return type(config) is self.config_cls

    def config(self, settings: Mapping[str, Any]) -> PeftConfig:
        """Return the PEFT configuration for the settings of a job."""
        from peft import TaskType

        settings = self.completed(settings)
        fields = dataclasses.fields(self.config_cls)
        known = [field.name for field in fields if field.init and field.name not in _PEFTS_OWN]
        for setting in settings:
            if setting not in known:
                raise FedpeftError(f"adapter {self.name!r} has no setting {setting!r}: it has {', '.join(known)}.")
        check_min_values(self.name, settings, self.min_values)
        if settings.get("task_type") is not None:
            one_of("task_type", settings["task_type"], [task.value for task in TaskType])
        try:
            return self.config_cls(**settings)
        except FedpeftError:
            raise
        except ValueError as error:  # of PEFT's own checks
            raise FedpeftError(f"adapter {self.name!r} is refused by PEFT: {str(error).rstrip('.')}.") from error

    def check(self, settings: Mapping[str, Any]) -> None:
        self.config(self.peft_settings(settings))
        for name, share in settings.items():
            if name.endswith("dropout") and isinstance(share, int | float) and not 0 <= share < 1:
                raise FedpeftError(f"adapter {self.name!r} has {name}={share!r}, it must be from 0 to below 1.")
        if settings.get("inference_mode"):
            raise FedpeftError(f"adapter {self.name!r} has inference_mode, and a job trains it: leave it out.")
        factors = {name: settings.get(name) for name in _FACTORS} | (settings.get("alpha_pattern") or {})
        for name, factor in factors.items():
            if factor == 0:
                raise FedpeftError(
                    f"adapter {self.name!r} has {name}={factor!r}, with which it adds nothing and never trains: give "
                    f"another number."
                )
        for name in _BACKBONE_SETTINGS:
            if (value := settings.get(name)) not in (None, False, "none", [], {}):
                raise FedpeftError(
                    f"adapter {self.name!r} has {name}={value!r:.80}, and a job trains and exchanges only the "
                    f"adapter's own tensors: leave {name} out."
                )

    def peft_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a job without fedpeft's own ones for the first values."""
        return dict(settings)

    def completed(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with the method's defaults, in PEFT's form."""
        return dict(settings)

    def seeded(self, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Return the settings with the seed of the initial values, if the configuration has one."""
        return dict(settings)

    def fit(self, model: nn.Module, config: PeftConfig) -> None:
        """Complete a configuration with values that depend on the model, before PEFT reads it."""

    def settle(self, config: PeftConfig, family: str | None) -> None:
        """Complete a configuration with values that follow from its other settings."""

    def prepare(self, backbone: Backbone, settings: Mapping[str, Any], *, seed: int) -> Any:
        self.check(settings)
        backbone.requires_grad_(False)
        return AdapterTrainable(backbone, self.config(self.seeded(self.peft_settings(settings), seed)), seed=seed)

    @abstractmethod
    def templates(self, config: PeftConfig, family: str | None) -> dict[str, str]:
        """Return slot -> module path with `{layer}`, from the configuration or else the table of the family."""

    @abstractmethod
    def parameters(self, model: nn.Module, config: PeftConfig, adapter_name: str) -> dict[str, Parameters]:
        """Return place (`layer.3.output`) -> tensor name -> parameter of one adapter in a model."""

    def shared_parameters(self, model: nn.Module, adapter_name: str) -> Parameters:
        """Return tensor name -> parameter that all places of an adapter share."""
        return {}

    def products(self, model: nn.Module, adapter_name: str) -> dict[str, Product]:
        """Return by place the frozen matrices with factors beside them; none without factors."""
        return {}

    @abstractmethod
    def peft_name(self, tensor: str) -> str:
        """Return PEFT's tensor name after the module path: `houlsby_adapter.down.weight`, `lora_A.weight`."""

    @abstractmethod
    def split_peft_name(self, name: str) -> tuple[str, str] | None:
        """Split PEFT's name into module path and tensor name; None if it is not a tensor of this method."""

    @abstractmethod
    def name_modules(self, config: PeftConfig, templates: Mapping[str, str], model: nn.Module | None = None) -> None:
        """Write the module paths into a configuration for PEFT; only those in the layers of a model, if it is given."""

    def width(self, settings: Mapping[str, Any], layer: int, stream: int) -> int | None:
        """Return the hidden neurons or the rank of an adapter with a site's settings; None: unknown.

        The server compares a site's announcement with this. `stream` is d, the width of the adapter's input in a layer.
        """
        return None

    def scale(self, config: PeftConfig, path: str, width: int) -> float:
        """Return the scale of an adapter's last matrix in a module with this width or rank."""
        return 1.0

    def starts(self, config: PeftConfig) -> set[str]:
        """Return the names of the settings whose first values changed the frozen weights."""
        return set()

    def check_merge(self, config: PeftConfig) -> None:
        """Refuse a configuration if the tensors alone do not determine what the adapter computes."""

    def merged_settings(self, config: PeftConfig, state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Return the changed settings of a merged adapter, with the widths or ranks of its state."""
        return self.state_settings(state, {})

    def state_settings(self, state: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the changed settings of a job if sites have unequal widths or ranks, as in the state."""
        return {}


def check_layers(layers: Iterable[int], num_layers: int) -> None:
    for layer in layers:
        if layer >= num_layers:
            raise FedpeftError(f"the adapter names layer {layer}, but the backbone has layers 0 to {num_layers - 1}.")


def check_types(name: str, settings: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Refuse values of the wrong type, which PEFT would accept and fail on later; `hints`: setting -> declared type."""
    for setting, value in settings.items():
        if setting not in hints or (setting == "target_modules" and isinstance(value, Mapping)):
            continue
        if not fits(list(value) if isinstance(value, set | frozenset) else value, hints[setting]):
            raise FedpeftError(
                f"adapter {name!r} has {setting}={value!r:.200}, it must be {expected(hints[setting])}.",
                setting="settings",
            )


def check_min_values(name: str, settings: Mapping[str, Any], min_values: Mapping[str, int]) -> None:
    """Refuse too small values, also in a list or mapping, which PEFT would accept and fail on at the first layer."""
    for setting, minimum in min_values.items():
        value = settings.get(setting)
        values = value.values() if isinstance(value, Mapping) else value
        for one in (value,) if not isinstance(values, Iterable) or isinstance(values, str) else values:
            if type(one) in (int, float) and one < minimum:
                raise FedpeftError(
                    f"adapter {name!r} has {setting}={value!r:.200}, it must be at least {minimum}.", setting="settings"
                )

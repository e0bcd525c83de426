# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""PEFT's own tuners whose tensors can be averaged and are in the modules that they adapt: one object each.

The update of `fourierft` and `miss` is linear in the trained tensors, so that the mean of the tensors is the mean of
the updates; for the others this is nearly so while the sites stay close to each other. The registrations name the
papers. The keys are `layer.<l>.<role>.<tensor>`, with the tensor's name in PEFT: `layer.3.value.ia3_l`.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from peft import FourierFTConfig, HRAConfig, IA3Config, LNTuningConfig, MissConfig, OFTConfig, VeraConfig
from peft.tuners.oft.layer import OFTLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from fedpeft.backbones.slots import SECOND_LINEARS, locate, slot_templates
from fedpeft.backbones.structure import (
    check_targets,
    family_of,
    name_modules,
    pattern_of,
    roles_of,
    select_layers,
    templates_in,
    templates_of,
)
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import place_of
from fedpeft.methods.first_values import Bounded, Constant, FirstValues, Uniform
from fedpeft.methods.slot_tuning import Parameters, SlotTuning, check_types

if TYPE_CHECKING:
    from peft import PeftConfig

    from fedpeft.backbones.backbone import Backbone


@dataclass(kw_only=True, eq=False)
class PeftTuning(SlotTuning):
    """A tuner of PEFT."""

    may_differ = SlotTuning.may_differ | {"d_initial"}  # of VeRA's first values
    config_cls: type[PeftConfig] = field(kw_only=False)
    name: str  # of its registration
    tensors: tuple[str, ...]  # names of its containers of tensors in PEFT's layers, such as `ia3_l`
    # of the modules that it adapts by default (`fedpeft.backbones.slots`)
    roles: tuple[str, ...] = ("query", "value")
    joint: bool = False  # a joint projection to query, key and value counts as each of them
    # settings that replace PEFT's own defaults, and null in a job
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # settings that a job cannot change: with other values the tensors could not be averaged
    fixed: Mapping[str, Any] = field(default_factory=dict)
    min_values: Mapping[str, int] = field(default_factory=dict)  # in addition to `SlotTuning.min_values`
    # function from its configuration, a tensor's name and its shape to the first values; None: see `Tuning`
    first: Callable[[Any, str, tuple[int, ...]], FirstValues] | None = None

    def __post_init__(self) -> None:
        self.min_values = {**SlotTuning.min_values, **self.min_values}

    def completed(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with defaults; a `target_modules` that maps roles to paths becomes a pattern."""
        chosen = {name: value for name, value in settings.items() if value is not None or name not in self.defaults}
        check_types(self.name, chosen, typing.get_type_hints(self.config_cls))
        for name, value in self.fixed.items():
            if chosen.get(name, value) != value:
                raise FedpeftError(f"adapter {self.name!r} has {name}={chosen[name]!r}, it must be {value!r}.")
        settings = {**self.defaults, **self.fixed, **chosen}
        targets = settings.get("target_modules")
        if targets is not None:
            check_targets(targets, self.name)
        if isinstance(targets, Mapping):
            settings |= select_layers(targets, settings)
        return settings

    def first_values(self, settings: Mapping[str, Any], key: str, shape: tuple[int, ...]) -> FirstValues:
        if self.first is None:
            return super().first_values(settings, key, shape)
        return self.first(self.config(self.peft_settings(settings)), key.rpartition(".")[2], shape)

    def fit(self, model: nn.Module, config: Any) -> None:
        """Write the modules of the model's family, or of a list or pattern in the settings, into the configuration."""
        targets = config.target_modules
        if not targets:
            templates = templates_in(model, self.roles, joint=self.joint)
        elif isinstance(targets, str) and roles_of(targets):
            templates = roles_of(targets)
        else:
            templates = templates_of(targets, model)
        self.name_modules(config, templates, model)

    def name_modules(self, config: Any, templates: Mapping[str, str], model: nn.Module | None = None) -> None:
        name_modules(config, templates, model)

    def templates(self, config: Any, family: str | None) -> dict[str, str]:
        targets = config.target_modules
        if isinstance(targets, str) and (templates := roles_of(targets)):
            return templates
        if targets or family is None:
            raise FedpeftError(
                f"{self.name}: target_modules={targets!r} has no roles: attach the adapter with "
                "fedpeft.adapters.attach, or make the configuration with target_modules={role: path}."
            )
        return slot_templates(family, self.roles, joint=self.joint)

    def parameters(self, model: nn.Module, config: PeftConfig, adapter_name: str) -> dict[str, Parameters]:
        templates = self.templates(config, family_of(model))
        places: dict[str, Parameters] = {}
        for path, module in model.named_modules():
            if isinstance(module, BaseTunerLayer) and (tensors := self._tensors(module, adapter_name)):
                if (located := locate(path, templates)) is None:
                    raise FedpeftError(f"{self.name}: module {path} is not one of {', '.join(templates.values())}.")
                places[place_of(located[1], located[0])] = tensors
        return places

    def _tensors(self, module: BaseTunerLayer, adapter_name: str) -> Parameters:
        """Return tensor name -> parameter of one adapter in one of PEFT's layers."""
        tensors: Parameters = {}
        for name in self.tensors:
            part = dict(getattr(module, name, {})).get(adapter_name)
            if isinstance(part, nn.Parameter):
                tensors[name] = part
            elif isinstance(part, nn.Module):
                tensors |= {f"{name}.{inner}": parameter for inner, parameter in part.named_parameters()}
        return tensors

    def peft_name(self, tensor: str) -> str:
        return tensor

    def split_peft_name(self, name: str) -> tuple[str, str] | None:
        parts = name.split(".")
        for index, part in enumerate(parts):
            if part in self.tensors:
                return ".".join(parts[:index]), ".".join(parts[index:])
        return None


SCALED_INPUT = "second_linear"  # its input is scaled, and the output of key and value


def _is_second_linear(role: str, path: str) -> bool:
    """Return whether a module is the last linear layer of a feed-forward block, by its role or its path in a layer."""
    return role.endswith(SCALED_INPUT) or path.rpartition("{layer}.")[2] in SECOND_LINEARS


class IA3Tuning(PeftTuning):
    """IA3, which also needs to know the modules whose input is scaled."""

    def name_modules(self, config: Any, templates: Mapping[str, str], model: nn.Module | None = None) -> None:
        super().name_modules(config, templates, model)
        self.settle(config, None)

    def settle(self, config: Any, family: str | None) -> None:
        templates = self.templates(config, family)
        scaled = {role: path for role, path in templates.items() if _is_second_linear(role, path)}
        if config.feedforward_modules is None:
            config.feedforward_modules = pattern_of(scaled) if scaled else []


class OFTTuning(PeftTuning):
    """OFT; where a block's width or number does not divide the width of a layer's input, PEFT takes another one."""

    def prepare(self, backbone: Backbone, settings: Mapping[str, Any], *, seed: int) -> Any:
        trainable = super().prepare(backbone, settings, seed=seed)
        for path, module in backbone.model.named_modules():
            if not isinstance(module, OFTLayer):
                continue
            (count,), (width,) = module.r.values(), module.oft_block_size.values()
            for name, built in (("oft_block_size", width), ("r", count)):
                if settings.get(name) not in (None, 0, built):
                    raise FedpeftError(
                        f"adapter {self.name!r} has {name}={settings[name]!r}, which does not divide the "
                        f"{count * width} inputs of {path}: use for instance {built}."
                    )
        return trainable


def _reflections(config: HRAConfig, name: str, shape: tuple[int, ...]) -> FirstValues:
    rank = math.prod(shape[-1:])
    pairs = config.init_weights and rank % 2 == 0  # the second of two reflections undoes the first
    return Uniform(math.sqrt(2 / rank), copies=2) if pairs else Uniform(math.sqrt(1 / rank))


def _vectors(config: VeraConfig, name: str, shape: tuple[int, ...]) -> FirstValues:
    if not config.init_weights:
        return Bounded()
    return Constant(config.d_initial) if name == "vera_lambda_d" else Constant()


LAYERNORM = PeftTuning(
    LNTuningConfig, name="layernorm", roles=("attention_norm", "output_norm"), tensors=("ln_tuning_layers",)
)
IA3 = IA3Tuning(
    IA3Config,
    name="ia3",
    roles=("key", "value", SCALED_INPUT),
    tensors=("ia3_l",),
    joint=True,
    first=lambda config, *_: Constant(1.0) if config.init_ia3_weights else Bounded(),
)
OFT = OFTTuning(
    OFTConfig,
    name="oft",
    tensors=("oft_R",),
    fixed={"module_dropout": 0.0},  # PEFT reads no other value in training
    min_values={"r": 0, "oft_block_size": 0},  # one of the two follows from the other and is 0
    first=lambda config, *_: Constant() if config.init_weights else Bounded(),
)
HRA = PeftTuning(HRAConfig, name="hra", tensors=("hra_u",), min_values={"r": 1}, first=_reflections)
VERA = PeftTuning(
    VeraConfig,
    name="vera",
    tensors=("vera_lambda_b", "vera_lambda_d"),
    min_values={"r": 1},
    defaults={"save_projection": False},  # every site draws the frozen matrices from `projection_prng_key`
    first=_vectors,
)
FOURIERFT = PeftTuning(
    FourierFTConfig,
    name="fourierft",
    tensors=("fourierft_spectrum",),
    min_values={"n_frequency": 1, "random_loc_seed": 0},
    defaults={"random_loc_seed": 777, "n_frequency_pattern": {}},  # PEFT's own, which fails on null
    fixed={"init_weights": True},  # zeros: PEFT's normal values would change the function at the start
    first=lambda *_: Constant(),
)
MISS = PeftTuning(
    MissConfig,
    name="miss",
    tensors=("miss_block",),
    min_values={"r": 1},
    defaults={"r": 8},  # of a square matrix as many numbers as LoRA of rank 4
    # "bat" multiplies with the matrix, so that it is not linear in the block; only "mini" reads `mini_r`
    fixed={"init_weights": True, "mini_r": 1},
    first=lambda *_: Constant(),
)

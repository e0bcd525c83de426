# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""LoRA and DoRA, PEFT's own tuners: settings, keys and shapes of their tensors, and the scale of their products.

Keys are `layer.<l>.<query|value>.A` and `.B`, and DoRA's trained `magnitude` of every output beside them. Sites that
share products must have the same scale. Sources: Hu et al. 2022, LoRA: Low-Rank Adaptation of Large Language
Models; Liu et al. 2024, DoRA: Weight-Decomposed Low-Rank Adaptation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from peft.utils.other import get_pattern_key
from torch import nn

from fedpeft.alignment.factors import XAVIER, Product, first_factor, start_deviation
from fedpeft.backbones import structure
from fedpeft.backbones.backbone import Backbone
from fedpeft.backbones.slots import SLOTS, chosen, locate, module_path, slot_templates
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import place_of
from fedpeft.core.settings import hints_of
from fedpeft.methods.first_values import Bounded, Constant, FirstValues, Normal, Uniform
from fedpeft.methods.setting_limits import RANK
from fedpeft.methods.slot_tuning import (
    AdapterTrainable,
    Parameters,
    Shapes,
    SlotTuning,
    check_layers,
    check_min_values,
    check_types,
)

SCALE = 2  # if a job sets no lora_alpha


def lora_scale(settings: Mapping[str, Any]) -> float | None:
    """Return the scale, lora_alpha / r; None if the settings are not numbers, which their own check refuses."""
    rank = settings.get("r", RANK)
    alpha = settings.get("lora_alpha", SCALE * rank if type(rank) is int else None)
    if type(rank) is not int or rank < 1 or type(alpha) not in (int, float):
        return None
    return alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def lora_part_scale(settings: Mapping[str, Any]) -> float | None:
    """Return the scale of the part `lora` of a method that trains several."""
    part = settings.get("lora", {})
    return lora_scale(part) if isinstance(part, Mapping) else None


DEFAULTS = {"target_modules": ["query", "value"], "r": RANK}
START_STD = "start_std"
HINTS = {**hints_of(LoraConfig), "lora_alpha": float}
SIZES = frozenset({"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"})
# settings of plain LoRA, which adds only the product B A; PEFT has others, for variants that compute more
PLAIN = SIZES | {"lora_dropout", "init_lora_weights", "layers_to_transform", "layers_pattern", "fan_in_fan_out", "bias"}
MIN_SCALE = 1e-6
PLAIN_STARTS = (True, False, "gaussian", "orthogonal")  # PEFT's other starts change the frozen weights


class LoraTuning(SlotTuning):
    """PEFT's LoRA; by default on query and value, with r = 4 and a scale (alpha / r) of 2.

    With `start_std` in a job's settings the first values of A are from N(0, start_std^2), not uniform in 1 / sqrt(d_in)
    as PEFT draws them; `xavier` is sqrt(2 / (r + d_in)). Those of B are 0 either way.
    """

    name = "lora"
    start = "init_lora_weights"
    min_values: Mapping[str, int] = {**SlotTuning.min_values, "r": 1, "rank_pattern": 1}
    may_differ = SlotTuning.may_differ | SIZES | {"lora_dropout", "init_lora_weights", "layers_to_transform"}

    def matches(self, config: Any) -> bool:
        return type(config) is LoraConfig and not config.use_dora

    def peft_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        std = settings.get(START_STD)
        if std not in (None, XAVIER) and (type(std) not in (int, float) or not 0 < std < math.inf):
            raise FedpeftError(f"{self.name} has {START_STD}={std!r:.80}, it must be a number above 0, or {XAVIER!r}.")
        if std is not None and settings.get("init_lora_weights", True) is not True:
            raise FedpeftError(
                f"{self.name} has {START_STD}={std!r:.80} and another init_lora_weights: leave one of them out."
            )
        return {name: value for name, value in settings.items() if name != START_STD}

    def check(self, settings: Mapping[str, Any]) -> None:
        super().check(settings)
        start = settings.get("init_lora_weights")
        if isinstance(start, str) and start.startswith("pissa_niter"):
            raise FedpeftError(
                f"{self.name} has init_lora_weights={start!r:.80}, whose first values PEFT draws anew whenever it "
                f"loads the adapter: use 'pissa'."
            )
        if not self.matches(self.config(self.peft_settings(settings))):
            raise FedpeftError(
                f"{self.name} has use_dora={settings['use_dora']!r}, which makes it another method: set method.name to "
                f"{'dora' if settings['use_dora'] else 'lora'} instead."
            )

    def prepare(self, backbone: Backbone, settings: Mapping[str, Any], *, seed: int) -> AdapterTrainable:
        trainable = super().prepare(backbone, settings, seed=seed)
        if (std := settings.get(START_STD)) is not None:
            trainable.start_std = std
            with torch.no_grad():
                for key, parameter in trainable.parameters().items():
                    if key.endswith(".A"):
                        parameter.copy_(first_factor(tuple(parameter.shape), seed, key, start_std=std))
        return trainable

    def first_values(self, settings: Mapping[str, Any], key: str, shape: tuple[int, ...]) -> FirstValues:
        how = self.config(self.peft_settings(settings)).init_lora_weights
        if key.endswith(".B") and how in (True, "gaussian"):
            return Constant()
        if key.endswith(".A") and (how == "gaussian" or settings.get(START_STD) is not None):
            std = settings.get(START_STD)
            return Normal(start_deviation(std, shape) if std is not None else 1 / math.prod(shape[:1]))
        return Uniform(1 / math.sqrt(math.prod(shape[1:]))) if key.endswith(".A") and how is True else Bounded()

    def completed(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        check_types(self.name, settings, HINTS)
        settings = {**DEFAULTS, **settings}
        settings.setdefault("lora_alpha", SCALE * settings["r"])
        if isinstance(settings["target_modules"], Mapping):
            structure.check_targets(settings["target_modules"], self.name)
            settings |= structure.select_layers(settings["target_modules"], settings)
        return settings

    def fit(self, model: nn.Module, config: LoraConfig) -> None:
        """Write the selected paths as a pattern into the configuration, as PEFT needs it."""
        family = structure.family_of(model)
        targets = config.target_modules
        if (isinstance(targets, str) and not structure.roles_of(targets)) or not targets:
            return  # in one of PEFT's own forms
        if not isinstance(targets, str) and family not in SLOTS:
            self.name_modules(config, self._found(targets, model), model)
            return
        templates = self.templates(config, family)
        paths = [path for path, _ in model.named_modules()]
        for slot, template in templates.items():
            if not any(locate(path, {slot: template}) for path in paths):
                raise FedpeftError(
                    f"{self.name}: {slot!r} is {template} in target_modules, which matches no module of "
                    f"{type(model).__name__}: name its projections with target_modules={{role: path}}."
                )
        self.name_modules(config, templates, model)

    def name_modules(self, config: LoraConfig, templates: Mapping[str, str], model: nn.Module | None = None) -> None:
        structure.name_modules(config, templates, model)

    def templates(self, config: LoraConfig, family: str | None) -> dict[str, str]:
        targets = config.target_modules
        if isinstance(targets, str) and (templates := structure.roles_of(targets)):
            return templates
        if not targets or isinstance(targets, str):
            raise FedpeftError(
                f"{self.name}: target_modules={targets!r} must list roles or modules, for instance ['query', 'value'], "
                f"or be made by fedpeft.adapters.config({self.name!r}, target_modules={{role: path}}): modules of "
                f"other patterns have no keys."
            )
        if family is None:
            raise FedpeftError(f"{self.name}: give the model family (model_type, such as 'vilt').")
        if family not in SLOTS:
            return slot_templates(family, sorted(targets))  # the error names every role
        templates = {}
        for target in sorted(targets):
            named = _named(SLOTS[family], target)
            templates |= named or slot_templates(family, [target])
        return templates

    def _found(self, targets: Iterable[str], model: nn.Module) -> dict[str, str]:
        """Return slot -> module path of roles or module names in a model whose family is not in the table."""
        known = structure.known_roles(model)
        templates: dict[str, str] = {}
        for target in sorted(targets):
            named = _named(known, target)
            if not named and target not in DEFAULTS["target_modules"] and target not in known:
                named = structure.templates_of([target], model)
            if not named:  # the error names every role
                named = chosen(
                    structure.model_roles(model, sorted(targets)), (target,), str(structure.family_of(model))
                )
            templates |= named
        return templates

    def shapes(self, config: LoraConfig, family: str | None, num_layers: int, hidden_size: int) -> Shapes:
        """Return key -> shape; every adapted projection is assumed to be (d, d)."""
        shapes: Shapes = {}
        layers = config.layers_to_transform
        if layers is None and isinstance(config.target_modules, str):
            layers = structure.layers_of_pattern(config.target_modules)
        layers = range(num_layers) if layers is None else [layers] if isinstance(layers, int) else sorted(layers)
        check_layers(layers, num_layers)
        for layer in layers:
            for slot, template in self.templates(config, family).items():
                pattern = get_pattern_key(config.rank_pattern.keys(), module_path(template, layer))
                rank = config.rank_pattern.get(pattern, config.r)  # PEFT's `rank_pattern` may replace `r`
                shapes[f"{place_of(layer, slot)}.A"] = (rank, hidden_size)
                shapes[f"{place_of(layer, slot)}.B"] = (hidden_size, rank)
        return shapes

    def parameters(self, model: nn.Module, config: LoraConfig, adapter_name: str) -> dict[str, Parameters]:
        """Return A (r, d_in) and B (d_out, r) of every projection."""
        return {
            place: {
                "A": layer.lora_A[adapter_name].get_parameter("weight"),
                "B": layer.lora_B[adapter_name].get_parameter("weight"),
            }
            for place, layer in self.adapted(model, config, adapter_name)
        }

    def products(self, model: nn.Module, adapter_name: str) -> dict[str, Product]:
        places = {}
        for place, layer in self.adapted(model, model.peft_config[adapter_name], adapter_name):
            weight = layer.get_base_layer().weight
            turned = getattr(layer, "fan_in_fan_out", False)
            places[place] = Product(weight.T if turned else weight, layer.scaling[adapter_name])
        return places

    def adapted(self, model: nn.Module, config: LoraConfig, adapter_name: str) -> Iterator[tuple[str, LoraLayer]]:
        """Yield place and layer of every projection that has this adapter."""
        family = structure.family_of(model)
        templates = self.templates(config, family)
        for path, module in model.named_modules():
            if not isinstance(module, LoraLayer) or adapter_name not in module.lora_A:
                continue
            if (located := locate(path, templates)) is None:
                raise FedpeftError(
                    f"{self.name}: module {path} has no role in model family {family!r}, so its tensors have no keys: "
                    "use target_modules={role: path}."
                )
            yield place_of(located[1], located[0]), module

    def width(self, settings: Mapping[str, Any], layer: int, stream: int) -> int | None:
        """Return the rank r; None where PEFT's `rank_pattern` gives modules ranks of their own."""
        return None if settings.get("rank_pattern") else settings.get("r", RANK)

    def state_settings(self, state: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
        rank = max(tensor.shape[0] for key, tensor in state.items() if key.endswith(".A"))
        return {"r": rank, "lora_alpha": rank * lora_scale(settings), "use_rslora": False}

    def scale(self, config: LoraConfig, path: str, width: int) -> float:
        alpha = config.alpha_pattern.get(get_pattern_key(config.alpha_pattern.keys(), path), config.lora_alpha)
        return alpha / (math.sqrt(width) if config.use_rslora else width)

    def starts(self, config: LoraConfig) -> set[str]:
        return set() if config.init_lora_weights in PLAIN_STARTS else {"init_lora_weights", "r"}

    def check_merge(self, config: LoraConfig) -> None:
        sizes = {name: getattr(config, name) for name in sorted(SIZES)}
        check_types(self.name, sizes, HINTS)
        check_min_values(self.name, sizes, self.min_values)
        plain = type(config)()
        for field in dataclasses.fields(config):
            known = field.name in PLAIN or field.name in self.may_differ
            if not known and getattr(config, field.name) != getattr(plain, field.name):
                raise FedpeftError(f"it has PEFT's setting {field.name}, with which it computes more than B A.")
        if self.starts(config):
            raise FedpeftError(
                f"it has init_lora_weights={config.init_lora_weights!r:.80}, which changed the weights of its own "
                f"model."
            )

    def merged_settings(self, config: LoraConfig, state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        rank = max(tensor.shape[0] for key, tensor in state.items() if key.endswith(".A"))
        scale = config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r)
        # the scale of the sites' models, as `predict --adapter` asks for; B is divided by it, so it must not be near 0
        alpha = rank * (scale if MIN_SCALE <= abs(scale) <= 1 / MIN_SCALE else 1.0)
        sizes: dict[str, Any] = {"r": rank, "lora_alpha": int(alpha) if alpha.is_integer() else alpha}
        plain: dict[str, Any] = {"use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}}
        return {**sizes, **plain, "init_lora_weights": True}

    def peft_name(self, tensor: str) -> str:
        return f"lora_{tensor}.weight"

    def split_peft_name(self, name: str) -> tuple[str, str] | None:
        for matrix in "AB":
            if name.endswith(f".lora_{matrix}.weight"):
                return name.removesuffix(f".lora_{matrix}.weight"), matrix
        return None


def _named(table: Mapping[str, str], target: str) -> dict[str, str]:
    """Return the places of a table that a target names: a role in every tower, or the modules of this name."""
    roles = {slot: path for slot, path in table.items() if slot == target or slot.endswith(f"_{target}")}
    if roles and target in DEFAULTS["target_modules"]:  # towers may name their projections differently
        return roles
    return {slot: path for slot, path in table.items() if path.endswith(f".{target}")}


TUNING = LoraTuning(LoraConfig)


MAGNITUDE, PEFT_MAGNITUDE = "magnitude", "lora_magnitude_vector"


class DoraTuning(LoraTuning):
    """LoRA with `use_dora`: A (r, d_in), B (d_out, r) and the magnitude (d_out,) of every projection."""

    name = "dora"

    def matches(self, config: Any) -> bool:
        return type(config) is LoraConfig and config.use_dora

    def completed(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {"use_dora": True, **super().completed(settings)}

    def shapes(self, config: LoraConfig, family: str | None, num_layers: int, hidden_size: int) -> Shapes:
        shapes = super().shapes(config, family, num_layers, hidden_size)
        places = {key.removesuffix(".B"): shape[0] for key, shape in shapes.items() if key.endswith(".B")}
        return shapes | {f"{place}.{MAGNITUDE}": (outputs,) for place, outputs in places.items()}

    def parameters(self, model: nn.Module, config: LoraConfig, adapter_name: str) -> dict[str, Parameters]:
        places = super().parameters(model, config, adapter_name)
        for place, layer in self.adapted(model, config, adapter_name):
            if adapter_name in layer.lora_magnitude_vector:
                places[place][MAGNITUDE] = layer.lora_magnitude_vector[adapter_name].weight
        return places

    def peft_name(self, tensor: str) -> str:
        """Return for instance `lora_A.weight`; PEFT's files have the magnitude without `.weight`."""
        return PEFT_MAGNITUDE if tensor == MAGNITUDE else super().peft_name(tensor)

    def split_peft_name(self, name: str) -> tuple[str, str] | None:
        if name.endswith(f".{PEFT_MAGNITUDE}"):
            return name.removesuffix(f".{PEFT_MAGNITUDE}"), MAGNITUDE
        return super().split_peft_name(name)


DORA = DoraTuning(LoraConfig)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The PEFT tuner: finds the modules of a backbone that get an adapter, and wraps them."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peft import PeftConfig
from peft.tuners.tuners_utils import BaseTuner
from torch import nn

from fedpeft.backbones.slots import locate
from fedpeft.backbones.structure import templates_in, templates_of
from fedpeft.core.errors import FedpeftError
from fedpeft.methods.bottleneck.config import BottleneckConfig
from fedpeft.methods.bottleneck.layer import BottleneckLayer, raise_cannot_merge


class BottleneckModel(BaseTuner):
    """A backbone with bottleneck adapters; made by `peft.get_peft_model`.

    Children set `prefix` (PEFT's mark of the method in state dict keys) and `tuner_layer_cls`.
    """

    tuner_layer_cls: type[BottleneckLayer]

    def set_adapter(self, adapter_name: str | list[str], inference_mode: bool = False) -> None:
        """Make one or several adapters active; the layers add the mean of their outputs."""
        for name in [adapter_name] if isinstance(adapter_name, str) else adapter_name:
            if name not in self.peft_config:
                raise FedpeftError(f"adapter {name!r} is not in the model (it has: {', '.join(self.peft_config)}).")
        super().set_adapter(adapter_name, inference_mode=inference_mode)

    @contextmanager
    def _enable_peft_forward_hooks(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        # PEFT takes adapter_names out of the call before the layers could see it
        if kwargs.get("adapter_names") is not None:
            raise FedpeftError(
                f"{type(self).__name__} has no mixed batches: leave adapter_names out, set one adapter with "
                "set_adapter(name) and call the model once for each."
            )
        yield

    def _prepare_adapter_config(self, peft_config: BottleneckConfig, model_config: dict[str, Any]) -> PeftConfig:
        return peft_config  # completed in _prepare_model, which has the model

    def _prepare_model(self, peft_config: BottleneckConfig, model: nn.Module) -> None:
        # all checks come here, before the first module is replaced
        # written into the configuration, as PEFT does, so that the saved adapter holds its own module paths
        peft_config.target_modules = _templates(peft_config, model)
        places = find_places(peft_config, model)
        warn_of_missing_roles(peft_config)
        for path, (role, layer) in places.items():
            module = model.get_submodule(path)
            if isinstance(module, self.tuner_layer_cls):
                if module.role != role:
                    raise FedpeftError(
                        f"target_modules calls {path} {role!r}, but another adapter of this model calls it "
                        f"{module.role!r}: use one name."
                    )
                module = module.base_layer
            if peft_config.layers is None or layer in peft_config.layers:
                hidden_size = self.hidden_size_at(module, path)
                peft_config.width(hidden_size, layer)
                self.tuner_layer_cls.check_module(module, path, hidden_size)

    @staticmethod
    def _check_target_module_exists(peft_config: BottleneckConfig, key: str) -> bool:
        place = locate(key, peft_config.target_modules)
        return place is not None and (peft_config.layers is None or place[1] in peft_config.layers)

    def _create_and_replace(
        self,
        peft_config: BottleneckConfig,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        parameter_name: str | None = None,
    ) -> None:
        role, layer, _ = locate(current_key, peft_config.target_modules)
        if not isinstance(target, self.tuner_layer_cls):
            base_layer, target = target, self.build_layer(target, role, layer)
            self._replace_module(parent, target_name, target, base_layer)
        target.update_layer(adapter_name, peft_config, self.hidden_size_at(target.base_layer, current_key))

    def build_layer(self, base_layer: nn.Module, role: str, layer: int) -> BottleneckLayer:
        return self.tuner_layer_cls(base_layer, role, layer)

    def hidden_size_at(self, module: nn.Module, path: str) -> int:
        """Return a module's output width d: that of its last linear layer, else the model's hidden size."""
        for child in reversed(list(module.modules())):
            size = getattr(child, "out_features", None) or getattr(child, "nf", None)
            if size and size > 1:  # a gate of one output is not the block's last layer
                return size
        size = self.get_model_config(self.model).get("hidden_size")
        if size:
            return size
        raise FedpeftError(
            f"the hidden width of {path} is unknown: no linear layer in it, no hidden_size in the model."
        )

    def _replace_module(self, parent: nn.Module, child_name: str, new_module: nn.Module, child: nn.Module) -> None:
        # PEFT's own would copy child.weight, which a block such as ViltOutput does not have
        setattr(parent, child_name, new_module)

    def _check_merge_allowed(self) -> None:
        raise_cannot_merge(type(self).__name__)

    @classmethod
    def _remove_adapter_name_from_key(cls, key: str, adapter_name: str) -> str:
        # PEFT expects the adapter's name last or last but one; here: …houlsby_adapter.<name>.down.weight
        pattern = rf"(\b{cls.prefix}[a-z]+)\.{re.escape(adapter_name)}(?=\.|$)"
        return re.sub(pattern, r"\1", key, count=1)


def _templates(config: BottleneckConfig, model: nn.Module) -> dict[str, str]:
    """Return role -> path: the configuration's own, those that its list or pattern selects, or the method's roles."""
    targets = config.target_modules
    if targets is None:
        return templates_in(model, config.roles)
    if isinstance(targets, dict):
        return dict(targets)
    return templates_of(targets, model)


def warn_of_missing_roles(config: BottleneckConfig) -> None:
    """Warn if `target_modules` has fewer roles than the method, which then trains fewer parameters."""
    missing = [role for role in config.roles if role not in config.target_modules]
    if missing and len(config.target_modules) < len(config.roles):
        warnings.warn(
            f"{config.method} has an adapter at {' and '.join(config.roles)} of each layer, but target_modules names "
            f"{', '.join(config.target_modules)} only: add {', '.join(missing)}, or it trains fewer parameters.",
            stacklevel=2,
        )


def find_places(config: BottleneckConfig, model: nn.Module) -> dict[str, tuple[str, int]]:
    """Return module path -> (role, layer) of every place that the configuration's templates name, in any layer."""
    places: dict[str, tuple[str, int]] = {}
    parents: dict[str, set[str]] = {role: set() for role in config.target_modules}
    for path, _ in model.named_modules():
        place = locate(path, config.target_modules)
        if place:
            role, layer, parent = place
            places[path] = (role, layer)
            parents[role].add(parent)
    for role, template in config.target_modules.items():
        if not parents[role]:
            raise FedpeftError(
                f"target_modules[{role!r}]={template!r} matches no module of {type(model).__name__}: correct the path."
            )
        if len(parents[role]) > 1:
            raise FedpeftError(
                f"target_modules[{role!r}]={template!r} matches modules under several parents "
                f"({', '.join(map(repr, sorted(parents[role])))}): write the path from the model's root."
            )
    known = {layer for _, layer in places.values()}
    for name, layers in (("layers", config.layers), ("layer_widths", config.layer_widths)):
        beyond = sorted(set(layers or ()) - known)
        if beyond:
            raise FedpeftError(
                f"{name} names layer {beyond[0]}, but {type(model).__name__} has layers {min(known)} to {max(known)}."
            )
    return places

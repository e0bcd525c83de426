# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""An adapter in a model and without one: attach it, read its tensors, write them back, and their shapes.

Keys, shapes and initial values of an adapter from its configuration alone: the server needs no model.

Attach an adapter to a model.

Read an adapter's tensors from a model and write them back, by key (`fedpeft.core.keys`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedpeft.backbones.slots import SLOTS, two_towers
from fedpeft.backbones.structure import family_of
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import SHARED, layer_of, parse_key
from fedpeft.core.states import State, first_misfit
from fedpeft.methods.adapter_config import tuning_of

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel


def schema(config: PeftConfig, family: str | None, num_layers: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
    """Return key -> shape of every tensor, in the order of `adapter_state`.

    Args:
        config: configuration of an adapter.
        family: transformers `model_type`; may be None where the configuration has its own `target_modules`.
        num_layers: number of transformer layers of the backbone.
        hidden_size: its width d; LoRA's projections are assumed to be (d, d).

    Raises:
        FedpeftError: a layer is beyond `num_layers`, a width does not fit, the kind of adapter is unknown, or its slots
            are in several stacks of layers.
    """
    tuning = tuning_of(config)
    shapes = tuning.shapes(config, family, num_layers, hidden_size)
    if two_towers(tuning.templates(config, family).values()):
        raise FedpeftError(
            "the adapter is in two stacks of layers, which may differ in number and width: take the shapes from "
            "adapter_state(model)."
        )
    return shapes


def initial_state(config: PeftConfig, family: str | None, num_layers: int, hidden_size: int) -> State:
    """Return the adapter before training, byte for byte what `get_peft_model` starts from with this configuration.

    Args:
        config: its `init_seed` determines every value.
        family, num_layers, hidden_size: see `schema`.

    Raises:
        FedpeftError: the configuration is LoRA's, whose initial values PEFT draws itself.
    """
    return tuning_of(config).first_state(config, schema(config, family, num_layers, hidden_size))


def attach(model: nn.Module, config: PeftConfig, adapter_name: str = "default") -> PeftModel:
    """Attach an adapter, as `peft.get_peft_model` does; LoRA may name its projections by role.

    Args:
        model: a transformers model or any other module, or a PeftModel that gets one more adapter.
        config: from `fedpeft.adapters.config`.
        adapter_name: name that the adapter gets in the model.

    Raises:
        FedpeftError: `target_modules` does not fit the model, PEFT refuses a setting, or no method of fedpeft uses this
            configuration class.
    """
    from peft import PeftModel, get_peft_model

    tuning = tuning_of(config)
    tuning.fit(model, config)
    try:
        if isinstance(model, PeftModel):
            model.add_adapter(adapter_name, config)
            return model
        return get_peft_model(model, config, adapter_name)
    except FedpeftError:
        raise
    except (TypeError, ValueError) as error:  # of PEFT's own checks, which come with the layers
        raise FedpeftError(f"adapter {tuning.name!r} is refused by PEFT: {str(error).rstrip('.')}.") from error


def adapter_config(model: nn.Module, adapter_name: str = "default") -> PeftConfig:
    """Return the configuration of one adapter of a model."""
    configs = getattr(model, "peft_config", None)
    if not configs:
        raise FedpeftError(f"{type(model).__name__} has no adapter: make one with peft.get_peft_model(model, config).")
    if adapter_name not in configs:
        raise FedpeftError(f"adapter {adapter_name!r} is not in the model (it has: {', '.join(configs)}).")
    return configs[adapter_name]


def adapter_parameters(model: nn.Module, adapter_name: str = "default") -> dict[str, nn.Parameter]:
    """Return key -> parameter, ordered by layer and slot; parameters shared between layers come last."""
    config = adapter_config(model, adapter_name)
    tuning = tuning_of(config)
    places = tuning.parameters(model, config, adapter_name)
    parameters = {
        f"{place}.{name}": parameter
        for place, tensors in sorted(places.items(), key=lambda item: (layer_of(f"{item[0]}.x"), item[0]))
        for name, parameter in tensors.items()
    }
    shared = tuning.shared_parameters(model, adapter_name)
    return parameters | {f"{SHARED}{name}": parameter for name, parameter in shared.items()}


def adapter_slots(model: nn.Module, adapter_name: str = "default") -> dict[str, str]:
    """Return slot -> module path of an adapter in a model whose family is not in the table of slots; else nothing."""
    family, config = family_of(model), adapter_config(model, adapter_name)
    return {} if family in SLOTS else tuning_of(config).templates(config, family)


def adapter_state(model: nn.Module, adapter_name: str = "default") -> dict[str, torch.Tensor]:
    """Return key -> tensor of an adapter: detached, contiguous copies on the CPU."""
    return {
        key: parameter.detach().to("cpu", copy=True).contiguous()
        for key, parameter in adapter_parameters(model, adapter_name).items()
    }


def load_adapter_state(model: nn.Module, state: Mapping[str, torch.Tensor], adapter_name: str = "default") -> None:
    """Copy an adapter state into the model's adapter.

    Args:
        model: PEFT model.
        state: exactly the keys and shapes of ``adapter_state(model, adapter_name)``.
        adapter_name: which adapter.

    Raises:
        FedpeftError: a key is missing, unknown or of another shape; nothing is copied then.
    """
    parameters = adapter_parameters(model, adapter_name)
    check_state(state, {key: tuple(parameter.shape) for key, parameter in parameters.items()})
    with torch.no_grad():
        for key, parameter in parameters.items():
            parameter.copy_(state[key])


def check_state(state: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare an adapter state with its schema.

    Raises:
        FedpeftError: names the first key that is missing, unknown, not a tensor, or of another shape.
    """
    plain = {key: tensor.detach() if isinstance(tensor, nn.Parameter) else tensor for key, tensor in state.items()}
    misfit = first_misfit(plain, shapes)
    if misfit is None:
        return
    if misfit.missing:
        raise FedpeftError(
            f"the adapter state lacks {misfit.missing[0]!r}: it comes from another adapter or other layers."
        )
    if misfit.unknown:
        raise FedpeftError(
            f"the adapter state has {misfit.unknown[0]!r}, which this adapter does not: check method and layers."
        )
    key, tensor = misfit.key, state[misfit.key]
    if misfit.what == "form":
        raise FedpeftError(f"{key!r} in the adapter state is {type(tensor).__name__}, not a floating-point tensor.")
    raise FedpeftError(
        f"{key!r} in the adapter state has shape {tuple(tensor.shape)}, here it is {tuple(shapes[key])}: "
        "use the same reduction_factor and backbone."
    )


def set_trainable_layers(model: nn.Module, layers: Iterable[int] | None = None, adapter_name: str = "default") -> None:
    """Make exactly these transformer layers of one adapter trainable and freeze the rest of all adapters.

    Parameters shared between layers (Compacter's rule) are trainable as soon as any layer is. Parameters of the
    backbone and the head are left as they are.

    Args:
        model: PEFT model.
        layers: layer numbers from 0; None for all that the adapter has.
        adapter_name: the adapter to train; every other adapter of the model is frozen.

    Raises:
        FedpeftError: the adapter has no such layer.
    """
    parameters = adapter_parameters(model, adapter_name)
    known = {parts.layer for parts in map(parse_key, parameters) if parts}
    selected = known if layers is None else set(layers)
    if selected - known:
        raise FedpeftError(
            f"layer {sorted(selected - known)[0]} has no adapter {adapter_name!r} (layers with one: {sorted(known)})."
        )
    for name in model.peft_config:
        for key, parameter in adapter_parameters(model, name).items():
            parts = parse_key(key)
            trained = bool(selected) if parts is None else parts.layer in selected
            parameter.requires_grad_(name == adapter_name and trained)

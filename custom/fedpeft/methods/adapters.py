# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Adapters in PEFT's format: their configuration, in a model, without one, and as PEFT folders.

Keys (`fedpeft.core.keys`), shapes and first values follow from the configuration alone: the server needs no model.

key       layer.3.output.down.weight                                              shared.rule
PEFT      base_model.model.encoder.layer.3.output.houlsby_adapter.down.weight     base_model.compacter_shared.rule
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from fedpeft.backbones.slots import SLOTS, locate, module_path, two_towers
from fedpeft.backbones.structure import family_of
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import check_regular, read_json
from fedpeft.core.keys import (
    CONNECTOR,
    SHARED,
    layer_numbers,
    layer_of,
    only_connector,
    parse_key,
    place_of,
    without_connector,
)
from fedpeft.core.states import State, first_misfit
from fedpeft.methods import METHODS
from fedpeft.methods.method import names as adapter_names
from fedpeft.methods.setting_limits import SCALE_PATTERNS, check_strangers_settings

if TYPE_CHECKING:  # PEFT's import hook imports the methods, which import this module: functions import PEFT when called
    from peft import PeftConfig, PeftModel

    from fedpeft.methods.slot_tuning import SlotTuning

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
CONNECTOR_FILE = "connector.safetensors"  # beside the adapter, with the backbone's names of the tensors
ROOT = "base_model."
MODEL = f"{ROOT}model."
_NO_FILE = "{} does not exist: give a folder that save_adapter or save_pretrained wrote."


def tuning_of(config: PeftConfig) -> SlotTuning:
    """Return the code of the method that uses this configuration class."""
    for name in adapter_names():
        with contextlib.suppress(Exception):  # skip a plugin whose code cannot be imported
            tuning = cast("SlotTuning", METHODS.get(name).tuning())
            if tuning.matches(config):
                return tuning
    raise FedpeftError(
        f"{type(config).__name__} is of no method of fedpeft: use one of fedpeft.adapters.names(), "
        f"{', '.join(adapter_names())}."
    )


def config(name: str, **settings: Any) -> PeftConfig:
    """Return the PEFT configuration of an adapter: HoulsbyConfig, ...; for "lora" PEFT's LoraConfig.

    Args:
        name: one of `names()`.
        settings: fields of its configuration, for instance `reduction_factor=8`; `target_modules` may be role -> path
            for "lora" too. By default "lora" has query and value, r = 4 and a scale (alpha / r) of 2.

    Raises:
        FedpeftError: unknown adapter or setting, or a value out of range.
    """
    if name not in adapter_names():
        raise FedpeftError(f"adapter {name!r} is unknown: choose one of {', '.join(adapter_names())}.")
    return cast("SlotTuning", METHODS.get(name).tuning()).config(settings)


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
    if not hasattr(tuning, "shapes"):
        raise FedpeftError(f"{tuning.name} has no shapes without a model: take them from adapter_state(model).")
    shapes = tuning.shapes(config, family, num_layers, hidden_size)
    if two_towers(tuning.templates(config, family).values()):
        raise FedpeftError(
            "the adapter is in two stacks of layers, which may differ in number and width: take the shapes from "
            "adapter_state(model)."
        )
    return shapes


def initial_state(config: PeftConfig, family: str | None, num_layers: int, hidden_size: int) -> State:
    """Return the adapter before training, byte for byte what `get_peft_model` starts from with this configuration.

    The `init_seed` of the configuration determines every value; the other arguments are those of `schema`.

    Raises:
        FedpeftError: the configuration is LoRA's, whose initial values PEFT draws itself.
    """
    tuning, shapes = tuning_of(config), schema(config, family, num_layers, hidden_size)
    if not hasattr(tuning, "first_state"):  # PEFT draws them itself
        raise FedpeftError(
            f"{type(config).__name__} has no seeded initial values: take them from adapter_state(model) at one place."
        )
    return tuning.first_state(config, shapes)


def attach(model: nn.Module, config: PeftConfig, adapter_name: str = "default") -> PeftModel:
    """Attach an adapter, as `peft.get_peft_model` does; LoRA may name its projections by role.

    The model is one of transformers or any other module, or a PeftModel that gets one more adapter.

    Raises:
        FedpeftError: `target_modules` does not fit the model, PEFT refuses a setting, or no method of fedpeft uses this
            configuration class.
    """
    from peft import PeftModel, get_peft_model

    tuning = tuning_of(config)
    tuning.fit(model.get_base_model() if isinstance(model, PeftModel) else model, config)
    try:
        if isinstance(model, PeftModel):
            model.add_adapter(adapter_name, config)
            return model
        return get_peft_model(model, config, adapter_name)
    except FedpeftError:
        raise
    except (TypeError, ValueError, IndexError) as error:  # of PEFT's own checks, which come with the layers
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


def adapter_slots(model: nn.Module, asked: PeftConfig, adapter_name: str = "default") -> dict[str, str]:
    """Return slot -> module path of an adapter, or nothing if the server can tell the places without the model.

    It can if the family is in the table of slots and `asked`, the configuration before it was attached, has no places
    or names their paths.
    """
    tuning, family = tuning_of(asked), family_of(model)
    templates = tuning.templates(adapter_config(model, adapter_name), family)
    if family not in SLOTS:
        return templates
    with contextlib.suppress(FedpeftError):  # `asked` has names or a pattern of modules
        if tuning.templates(asked, family) == templates:
            return {}
    return templates


def adapter_state(model: nn.Module, adapter_name: str = "default") -> dict[str, torch.Tensor]:
    """Return key -> tensor of an adapter: detached, contiguous copies on the CPU."""
    return {
        key: parameter.detach().to("cpu", copy=True).contiguous()
        for key, parameter in adapter_parameters(model, adapter_name).items()
    }


def load_adapter_state(model: nn.Module, state: Mapping[str, torch.Tensor], adapter_name: str = "default") -> None:
    """Copy exactly the keys and shapes of `adapter_state(model, adapter_name)` into the model's adapter.

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

    Layers are counted from 0; None: all that the adapter has. Parameters shared between layers (Compacter's rule) are
    trainable as soon as any layer is. Parameters of the backbone and the head do not change.

    Raises:
        FedpeftError: the adapter has no such layer, or a mask is given instead of numbers.
    """
    layers, parameters = layer_numbers(layers), adapter_parameters(model, adapter_name)
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


def peft_key(key: str, templates: Mapping[str, str], tuning: SlotTuning) -> str:
    """Return the name of a tensor in a PEFT file; `templates` maps slots to module paths."""
    parts = parse_key(key)
    if parts is None:
        return f"{ROOT}{tuning.name}_{key}"
    if parts.slot not in templates:
        raise FedpeftError(f"key {key!r} names slot {parts.slot!r}, but the adapter's are {', '.join(templates)}.")
    path = module_path(templates[parts.slot], parts.layer)
    return f"{MODEL}{path}.{tuning.peft_name(parts.tensor)}"


def own_key(key: str, templates: Mapping[str, str], tuning: SlotTuning) -> str:
    """Return the key of a tensor in a PEFT file; the inverse of `peft_key`, with any parent path."""
    shared = key.removeprefix(f"{ROOT}{tuning.name}_")
    if shared != key and shared.startswith(SHARED):
        return shared
    split = tuning.split_peft_name(key.removeprefix(MODEL)) if key.startswith(MODEL) else None
    located = locate(split[0], templates) if split else None
    if located is None:
        raise FedpeftError(
            f"tensor {key!r:.200} belongs to no slot of {tuning.name} ({', '.join(templates.values())})."
        )
    slot, layer, _ = located
    return f"{place_of(layer, slot)}.{split[1]}"


def save_adapter(
    folder: str | Path, state: Mapping[str, torch.Tensor], config: PeftConfig, family: str | None = None
) -> Path:
    """Write an adapter state (key -> tensor) as a PEFT folder, without a model; `PeftModel.from_pretrained` reads it.

    Args:
        folder: created if it does not exist, and returned.
        family: transformers `model_type`; needed where the configuration has no `target_modules` of its own
            (`get_peft_model` writes them into it), and for LoRA.

    Raises:
        FedpeftError: a key is not the adapter's, or neither configuration nor family gives the module paths.
    """
    tuning = tuning_of(config)
    templates = tuning.templates(config, family)
    own = {key: tensor.detach().cpu().contiguous() for key, tensor in state.items()}
    tensors = {peft_key(key, templates, tuning): tensor for key, tensor in without_connector(own).items()}
    settings = copy.deepcopy(config)
    settings.inference_mode = True  # as PEFT's save_pretrained does
    tuning.name_modules(settings, templates)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder, settings, tensors)
    if connector := only_connector(own):
        save_file({key.removeprefix(CONNECTOR): t for key, t in connector.items()}, folder / CONNECTOR_FILE)
    else:
        (folder / CONNECTOR_FILE).unlink(missing_ok=True)  # of an earlier adapter
    return folder


def write_files(folder: Path, config: PeftConfig, tensors: dict[str, torch.Tensor]) -> None:
    """Write a configuration, and tensors under PEFT's names, into a folder."""
    values = {key: sorted(v) if isinstance(v, set) else v for key, v in sorted(config.to_dict().items())}
    # what is inside is not sorted: of PEFT's patterns of names the first that matches counts
    (folder / CONFIG_FILE).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def load_adapter(
    model: nn.Module, folder: str | Path, adapter_name: str = "default", *, trainable: bool = False
) -> PeftModel:
    """Put a saved adapter into a model; unlike `PeftModel.from_pretrained`, every tensor must fit.

    A connector in the folder belongs to the backbone around the model, which loads it with `load_state_dict`.

    Args:
        model: a transformers model, or a PeftModel that gets one more adapter.
        trainable: leave the adapter trainable; otherwise freeze it and set the model to evaluation mode.

    Raises:
        FedpeftError: not an adapter folder, a damaged file, or a tensor that is missing, unknown or of another shape.
    """
    from peft import PeftModel

    config = read_config(folder)
    config.inference_mode = not trainable
    state = without_connector(read_state(folder, config, family_of(model)))
    check_strangers_settings(vars(config), str(Path(folder) / CONFIG_FILE))
    added, trained = isinstance(model, PeftModel), {p: p.requires_grad for p in model.parameters()}
    model = attach(model, config, adapter_name)
    try:
        load_adapter_state(model, state, adapter_name)
    except FedpeftError as error:
        # leave the caller's model as it was
        model.delete_adapter(adapter_name) if added else model.unload()
        for parameter, trains in trained.items():
            parameter.requires_grad_(trains)
        raise FedpeftError(f"{folder} does not fit {type(model.get_base_model()).__name__}: {error}") from error
    if not trainable:
        model.eval()
    return model


def read_config(folder: str | Path) -> PeftConfig:
    from peft import PeftType
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    file = Path(folder) / CONFIG_FILE
    try:
        kind = read_json(file).get("peft_type")
    except FileNotFoundError as error:
        raise FedpeftError(_NO_FILE.format(file)) from error
    except (OSError, ValueError, AttributeError) as error:
        raise FedpeftError(f"{file} cannot be read ({error}): write the adapter again.") from error
    if not isinstance(kind, str) or kind not in PEFT_TYPE_TO_CONFIG_MAPPING:
        raise FedpeftError(
            f"{file} names peft_type {kind!r:.80}, which this PEFT does not know: update fedpeft or peft."
        )
    try:
        config = PEFT_TYPE_TO_CONFIG_MAPPING[PeftType(kind)].from_pretrained(str(folder))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise FedpeftError(f"{file} cannot be read ({error!s:.200}): write the adapter again.") from error
    check_strangers_settings(vars(config), str(file), names=SCALE_PATTERNS)
    return config


def read_state(folder: str | Path, config: PeftConfig, family: str | None = None) -> dict[str, torch.Tensor]:
    file = Path(folder) / WEIGHTS_FILE
    if not file.is_file():
        raise FedpeftError(_NO_FILE.format(file))
    tensors, tuning = read_tensors(file), tuning_of(config)
    templates = tuning.templates(config, family)
    beside = Path(folder) / CONNECTOR_FILE
    connector = read_tensors(beside) if beside.exists() else {}
    return {own_key(key, templates, tuning): tensor for key, tensor in tensors.items()} | {
        f"{CONNECTOR}{name}": tensor for name, tensor in connector.items()
    }


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(check_regular(file))
    except (SafetensorError, OSError) as error:
        raise FedpeftError(f"{file} is not a readable safetensors file ({error}): write the adapter again.") from error

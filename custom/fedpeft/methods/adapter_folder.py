# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Save and load adapters as PEFT folders (``adapter_config.json``, ``adapter_model.safetensors``).

Translate tensor names between PEFT's files and fedpeft's keys, without a model.

fedpeft   layer.3.output.down.weight                                              shared.rule
PEFT      base_model.model.encoder.layer.3.output.houlsby_adapter.down.weight     base_model.compacter_shared.rule
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from peft import PeftConfig, PeftModel, PeftType
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from fedpeft.backbones.slots import locate, module_path
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import check_regular, read_json
from fedpeft.core.keys import SHARED, parse_key, place_of
from fedpeft.methods.adapter_config import tuning_of
from fedpeft.methods.adapters import attach, load_adapter_state
from fedpeft.methods.slot_tuning import SlotTuning

ROOT = "base_model."
MODEL = f"{ROOT}model."


def peft_key(key: str, templates: Mapping[str, str], tuning: SlotTuning) -> str:
    """Return the name of a tensor in a PEFT file; `templates` are slot -> module path."""
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
        raise FedpeftError(f"tensor {key!r} belongs to no slot of {tuning.name} ({', '.join(templates.values())}).")
    slot, layer, _ = located
    return f"{place_of(layer, slot)}.{split[1]}"


CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_NO_FILE = "{} does not exist: give a folder that save_adapter or save_pretrained wrote."


def save_adapter(
    folder: str | Path, state: Mapping[str, torch.Tensor], config: PeftConfig, family: str | None = None
) -> Path:
    """Write an adapter state as a PEFT folder, without a model; ``PeftModel.from_pretrained`` reads it.

    Args:
        folder: created if it does not exist.
        state: key -> tensor.
        config: the adapter's configuration.
        family: transformers ``model_type``; needed where the configuration has no ``target_modules`` of its own
            (``get_peft_model`` writes them into it), and for LoRA.

    Returns:
        The folder.

    Raises:
        FedpeftError: a key is not the adapter's, or neither configuration nor family gives the module paths.
    """
    tuning = tuning_of(config)
    templates = tuning.templates(config, family)
    tensors = {peft_key(key, templates, tuning): tensor.detach().cpu().contiguous() for key, tensor in state.items()}
    settings = copy.deepcopy(config)
    settings.inference_mode = True  # as PEFT's save_pretrained does
    tuning.name_modules(settings, templates)
    values = {key: sorted(v) if isinstance(v, set) else v for key, v in settings.to_dict().items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    return folder


def load_adapter(
    model: nn.Module, folder: str | Path, adapter_name: str = "default", *, trainable: bool = False
) -> PeftModel:
    """Put a saved adapter into a model; unlike ``PeftModel.from_pretrained``, every tensor must fit.

    Args:
        model: a transformers model, or a PeftModel that gets one more adapter.
        folder: what ``save_adapter`` or PEFT's ``save_pretrained`` wrote.
        adapter_name: name that the adapter gets in the model.
        trainable: leave the adapter trainable; otherwise freeze it and set the model to evaluation mode.

    Raises:
        FedpeftError: not an adapter folder, a damaged file, or a tensor that is missing, unknown or of another shape.
    """
    config = read_config(folder)
    config.inference_mode = not trainable
    state = read_state(folder, config, getattr(getattr(model, "config", None), "model_type", None))
    added = isinstance(model, PeftModel)
    model = attach(model, config, adapter_name)
    try:
        load_adapter_state(model, state, adapter_name)
    except FedpeftError as error:
        # leave the caller's model as it was
        model.delete_adapter(adapter_name) if added else model.unload()
        raise FedpeftError(f"{folder} does not fit {type(model.get_base_model()).__name__}: {error}") from error
    if not trainable:
        model.eval()
    return model


def read_config(folder: str | Path) -> PeftConfig:
    """Return the configuration of a saved adapter."""
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
        return PEFT_TYPE_TO_CONFIG_MAPPING[PeftType(kind)].from_pretrained(str(folder))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise FedpeftError(f"{file} cannot be read ({error!s:.200}): write the adapter again.") from error


def read_state(folder: str | Path, config: PeftConfig, family: str | None = None) -> dict[str, torch.Tensor]:
    """Return key -> tensor of a saved adapter."""
    file = Path(folder) / WEIGHTS_FILE
    if not file.is_file():
        raise FedpeftError(_NO_FILE.format(file))
    try:
        tensors = load_file(check_regular(file))
    except (SafetensorError, OSError) as error:
        raise FedpeftError(f"{file} is not a readable safetensors file ({error}): write the adapter again.") from error
    tuning = tuning_of(config)
    templates = tuning.templates(config, family)
    return {own_key(key, templates, tuning): tensor for key, tensor in tensors.items()}

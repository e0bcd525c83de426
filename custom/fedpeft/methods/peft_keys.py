# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Translate tensor names between PEFT's files and fedpeft's keys, without a model.

fedpeft   layer.3.output.down.weight                                              shared.rule
PEFT      base_model.model.encoder.layer.3.output.houlsby_adapter.down.weight     base_model.compacter_shared.rule
"""

from __future__ import annotations

from collections.abc import Mapping

from fedpeft.backbones.slots import locate, module_path
from fedpeft.core.errors import FedpeftError
from fedpeft.core.keys import SHARED, parse_key, place_of
from fedpeft.methods.slot_tuning import SlotTuning

ROOT = "base_model."
MODEL = f"{ROOT}model."


def peft_key(key: str, templates: Mapping[str, str], tuning: SlotTuning) -> str:
    """Return the name of a tensor in a PEFT file.

    Args:
        key: its key.
        templates: slot -> module path template.
        tuning: the method whose adapter it is.

    Raises:
        FedpeftError: the key names a slot that is not among the templates.
    """
    parts = parse_key(key)
    if parts is None:
        return f"{ROOT}{tuning.name}_{key}"
    if parts.slot not in templates:
        raise FedpeftError(f"key {key!r} names slot {parts.slot!r}, but the adapter's are {', '.join(templates)}.")
    path = module_path(templates[parts.slot], parts.layer)
    return f"{MODEL}{path}.{tuning.peft_name(parts.tensor)}"


def own_key(key: str, templates: Mapping[str, str], tuning: SlotTuning) -> str:
    """Return the key of a tensor in a PEFT file; the inverse of `peft_key`, with any parent path.

    Raises:
        FedpeftError: the tensor belongs to no slot.
    """
    shared = key.removeprefix(f"{ROOT}{tuning.name}_")
    if shared != key and shared.startswith(SHARED):
        return shared
    split = tuning.split_peft_name(key.removeprefix(MODEL)) if key.startswith(MODEL) else None
    located = locate(split[0], templates) if split else None
    if located is None:
        raise FedpeftError(f"tensor {key!r} belongs to no slot of {tuning.name} ({', '.join(templates.values())}).")
    slot, layer, _ = located
    return f"{place_of(layer, slot)}.{split[1]}"

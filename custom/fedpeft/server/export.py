# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Export the global adapter as a PEFT folder for `PeftModel.from_pretrained` and `fedpeft.load_adapter`; and a head."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file

from fedpeft import methods
from fedpeft.alignment.factors import of_equal_rank
from fedpeft.core.files import replacing
from fedpeft.core.keys import HEAD
from fedpeft.core.states import State
from fedpeft.methods.adapters import save_adapter
from fedpeft.methods.settings import MethodSettings
from fedpeft.methods.slot_tuning import SlotTuning


def import_peft() -> threading.Thread:
    """Begin to import PEFT, which takes seconds and is needed only at the end, while the sites work."""

    def load() -> None:
        import peft  # noqa: F401

    importing = threading.Thread(target=load, daemon=True)
    importing.start()
    return importing


def export_head(file: Path, state: State) -> None:
    """Write a federated head under its own names, for `load_state_dict`; nothing where the head is private.

    Args:
        file: replaced if it exists.
        state: the global adapter with its head.
    """
    if head := {key.removeprefix(HEAD): tensor for key, tensor in state.items() if key.startswith(HEAD)}:
        with replacing(file) as draft:
            save_file({name: tensor.contiguous() for name, tensor in head.items()}, draft)


def export_adapter(
    folder: Path,
    state: dict[str, torch.Tensor],
    method: MethodSettings,
    *,
    family: str,
    slots: Mapping[str, str] | None = None,
) -> Path:
    """Write `adapter_config.json` and `adapter_model.safetensors`.

    Args:
        folder: created if it is missing.
        state: the adapter under wire keys; a head is left out.
        method: of the job; it has an adapter to export.
        family: the backbone's kind (`fedpeft.backbones.slots`).
        slots: slot -> module path, where the family is not in that table.
    """
    settings, tuning = method.settings_of(""), cast(SlotTuning, methods.get(method.exported).tuning())
    state = {key: tensor for key, tensor in state.items() if not key.startswith(HEAD)}
    if method.rule.stacks:
        state = of_equal_rank(state)
    if method.site_settings or method.rule.stacks:  # the global adapter's width is that of its tensors
        settings |= tuning.state_settings(state, settings)
    if slots:
        settings["target_modules"] = dict(slots)
    return save_adapter(folder, state, tuning.config(tuning.of_peft(settings)), family)

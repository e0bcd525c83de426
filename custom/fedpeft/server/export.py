# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Export the global adapter as a PEFT folder for `PeftModel.from_pretrained` and `fedpeft.load_adapter`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch

from fedpeft import adapters, methods
from fedpeft.methods.factors import of_equal_rank
from fedpeft.methods.settings import MethodSettings
from fedpeft.methods.slot_tuning import SlotTuning


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
        state: the adapter under wire keys.
        method: of the job; it has an adapter to export.
        family: the backbone's kind (`fedpeft.backbones.slots`).
        slots: slot -> module path, where the family is not in that table.
    """
    settings, tuning = method.settings_of(""), cast(SlotTuning, methods.get(method.exported).tuning())
    if method.rule.stacks:
        state = of_equal_rank(state)
    if method.site_settings or method.rule.stacks:  # the global adapter's width is that of its tensors
        settings |= tuning.state_settings(state, settings)
    if slots:
        settings["target_modules"] = dict(slots)
    return adapters.save_adapter(folder, state, tuning.config(settings), family)

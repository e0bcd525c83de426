# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The global adapter as a PEFT folder, so that `PeftModel.from_pretrained` and `fedpeft.load_adapter` read it."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from fedpeft import adapters
from fedpeft.training.settings import MethodSettings

DOWN = re.compile(r"layer\.(\d+)\.[^.]+\.down\.weight")


def export_adapter(folder: Path, state: dict[str, torch.Tensor], method: MethodSettings, *, family: str) -> Path:
    """Write `adapter_config.json` and `adapter_model.safetensors`.

    Args:
        folder: made if it is missing.
        state: the adapter under wire keys.
        method: which adapter, with which settings.
        family: the backbone's kind (`fedpeft.backbones.sites`).
    """
    settings = dict(method.adapter_settings.get(method.adapter, {}))
    if method.site_adapter_settings:  # sites of unequal width: the global adapter's own widths are those of its tensors
        settings["layer_widths"] = {int(m[1]): t.shape[0] for key, t in state.items() if (m := DOWN.fullmatch(key))}
    return adapters.save_adapter(folder, state, adapters.config(method.adapter, **settings), family)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""By which factor LoRA's product counts, from its settings alone: it must be the same where sites share products."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

RANK, SCALE = 4, 2  # where a job sets neither r nor lora_alpha


def of_lora(settings: Mapping[str, Any]) -> float | None:
    """Return the scale, lora_alpha / r; None where the settings are not numbers, which their own check refuses."""
    rank = settings.get("r", RANK)
    alpha = settings.get("lora_alpha", SCALE * rank if type(rank) is int else None)
    if type(rank) is not int or rank < 1 or type(alpha) not in (int, float):
        return None
    return alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def of_part(settings: Mapping[str, Any]) -> float | None:
    """Return the scale of the part `lora` of a method that trains several."""
    part = settings.get("lora", {})
    return of_lora(part) if isinstance(part, Mapping) else None

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Tiny ViLTs with random weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, ViltConfig, ViltModel

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 8,
    "vocab_size": 50,
    "max_position_embeddings": 16,
}


def tiny_vilt(model: type[PreTrainedModel] = ViltModel, **changes: Any) -> PreTrainedModel:
    """A ViLT of two layers; the same weights each time, and torch's global generator stays as it was.

    Args:
        model: its class, for instance ``ViltForMaskedLM``.
        changes: settings of ``ViltConfig`` that replace those of `SMALL`.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model(ViltConfig(**{**SMALL, **changes})).eval()

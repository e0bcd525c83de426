# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""LLaVA-1.5 (Liu et al. 2024, arXiv:2310.03744): CLIP's image tower and a Llama that reads its patches as tokens.

Adapters stand in the language model's layers, 32 of the 7B model, the number that F3OCUS gives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedpeft.backbones import transformers_model
from fedpeft.backbones.checkpoint import reading
from fedpeft.backbones.transformers_model import TransformersModel

if TYPE_CHECKING:
    from fedpeft.backbones.registry import BackboneSettings

PROMPT = "USER: {image}\n{question}\nAnswer the question using a single word or phrase. ASSISTANT:"  # of its training


def build(settings: BackboneSettings, *, half: bool = False, weights: bool = True) -> TransformersModel:
    """Load a LLaVA from a folder; see `Pretrained.build`."""
    settings = replace(settings, prompt=settings.prompt or PROMPT)
    return transformers_model.build(settings, kinds=("llava",), half=half, weights=weights)


def skeleton(source: str | None = None) -> TransformersModel:
    """Return a LLaVA on torch's meta device: that of a source, or LLaVA-1.5-7B."""
    if source:
        return transformers_model.skeleton(source)
    from transformers import LlavaConfig, LlavaModel

    config = LlavaConfig()
    config.text_config.vocab_size = 32_064  # Llama's 32,000, the image's token, and room
    with reading("", "LLaVA"), torch.device("meta"):
        return TransformersModel(LlavaModel(config), None)

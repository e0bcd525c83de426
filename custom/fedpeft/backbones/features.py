# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One vector for each sample out of what a transformers model returns.

two towers       the features of image and text, one after the other, each by the rules below
pooler_output    where the model has one
causal model     its last layer at the last token that is not padding
else             at the first token where the model has a classifying one, or the mean over the tokens
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedpeft.backbones.structure import layer_stacks
from fedpeft.core.errors import FedpeftError

TOWER_OUTPUTS = ("vision_model_output", "text_model_output")
LAST, FIRST, MEAN = "last", "first", "mean"


def pooled(output: Mapping[str, Any], mask: Tensor | None, token: str) -> Tensor:
    """Return the features (B, d).

    Args:
        output: of a transformers model.
        mask: 1 where a token counts, (B, T), of its text; None: all count.
        token: "last", "first" or "mean", see `token_of`.

    Raises:
        FedpeftError: the output has none of the parts.
    """
    towers = [output.get(name) for name in TOWER_OUTPUTS]
    if all(tower is not None for tower in towers):
        vision, text = towers
        return torch.cat((pooled(vision, None, FIRST), pooled(text, mask, token)), dim=-1)
    if isinstance(pooler := output.get("pooler_output"), Tensor) and pooler.dim() == 2:
        return pooler
    hidden = output.get("last_hidden_state")
    if not isinstance(hidden, Tensor) or hidden.dim() != 3:
        raise FedpeftError(
            f"the model returns {', '.join(output)}, and no pooler_output or last_hidden_state of tokens to make "
            f"features of: name the folder of its encoder as backbone.source.",
            code="backbone-unusable",
        )
    if token == FIRST:
        return hidden[:, 0]
    if mask is None or mask.shape != hidden.shape[:2]:
        mask = torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device)
    if token == LAST:
        places = torch.arange(mask.shape[1], device=mask.device)
        last = (mask.bool() * places).argmax(dim=1)
        return hidden[torch.arange(len(hidden), device=hidden.device), last]
    weights = mask.to(hidden.dtype)[..., None]
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1)


def token_of(model: nn.Module, has_first: bool) -> str:
    """Return of which token a model without pooler has its features.

    Args:
        model: of transformers.
        has_first: whether its tokenizer begins a text with a classifying token.
    """
    stacks = layer_stacks(model)
    last = list(stacks.values())[-1] if stacks else []
    if any(getattr(module, "is_causal", None) is True for layer in last for module in layer.modules()):
        return LAST
    classifies = any(name.endswith(("cls_token", "class_embedding")) for name, _ in model.named_parameters())
    return FIRST if has_first or classifies else MEAN

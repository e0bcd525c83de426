# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Another way to compute the last layer of transformers' ViT, with the same modules: its first token alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.vit.modeling_vit import ViTAttention, ViTLayer, eager_attention_forward


class FirstTokenAttention(ViTAttention):
    """Attention of the first token to all: (B, T, d) -> (B, 1, d)."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        shape = (len(hidden_states), -1, self.num_attention_heads, self.head_dim)
        query = self.q_proj(hidden_states[:, :1]).view(shape).transpose(1, 2)
        key, value = (part(hidden_states).view(shape).transpose(1, 2) for part in (self.k_proj, self.v_proj))
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        mask = None if attention_mask is None else attention_mask[..., :1, :]
        dropout = self.attention_dropout if self.training else 0.0
        output, weights = attend(self, query, key, value, mask, dropout=dropout, scaling=self.scaling, **kwargs)
        return self.o_proj(output.reshape(len(hidden_states), 1, -1)), weights


class FirstTokenLayer(ViTLayer):
    """A layer that computes its first token alone, from all tokens of the layer before: (B, T, d) -> (B, 1, d)."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        attended, _ = self.attention(self.layernorm_before(hidden_states), attention_mask, **kwargs)
        hidden = self.dropout(attended) + hidden_states[:, :1]
        return self.dropout(self.mlp(self.layernorm_after(hidden))) + hidden


def first_token_only(model: nn.Module, only: bool) -> bool:
    """Switch the last layer of a ViTModel to its first token, or back; return whether it is as transformers made it."""
    last = model.layers[-1]
    attention = getattr(last.attention, "base_layer", last.attention) if isinstance(last, ViTLayer) else None
    if not isinstance(attention, ViTAttention):
        return False
    last.__class__ = FirstTokenLayer if only else ViTLayer
    attention.__class__ = FirstTokenAttention if only else ViTAttention
    return True

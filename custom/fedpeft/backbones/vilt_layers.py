# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Other ways to compute transformers' ViLT, with the same modules: fused attention, a last layer of the first token.

A module gets another class and keeps its parts, adapters among them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.vilt.modeling_vilt import ViltAttention, ViltLayer, ViltSelfAttention


class FusedAttention(ViltSelfAttention):
    """Self-attention by torch's `scaled_dot_product_attention`, which keeps no attention matrix for the way back."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, output_attentions: bool = False
    ) -> tuple[Tensor]:
        return (attended(self, hidden_states, hidden_states, attention_mask),)


class FirstTokenLayer(ViltLayer):
    """A layer that computes its first token alone, from all tokens of the layer before: (B, T, d) -> (B, 1, d)."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, output_attentions: bool = False
    ) -> tuple[Tensor]:
        normed = self.layernorm_before(hidden_states)
        first = normed[:, :1]
        seen = None if attention_mask is None else attention_mask[..., :1, :]
        context = attended(self.attention.attention, first, normed, seen)
        hidden = self.attention.output(context, first) + hidden_states[:, :1]
        return (self.output(self.intermediate(self.layernorm_after(hidden)), hidden),)


def attended(module: ViltSelfAttention, queries: Tensor, tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Return what some tokens take from all of them, (B, Q, d).

    Args:
        module: has the projections.
        queries: (B, Q, d).
        tokens: (B, T, d).
        mask: (B, 1, 1 or Q, T), booleans (what is seen), or numbers that are added to the attention's logits.
    """
    shape = (len(tokens), -1, module.num_attention_heads, module.attention_head_size)
    query = module.query(queries).view(shape).transpose(1, 2)
    key, value = (part(tokens).view(shape).transpose(1, 2) for part in (module.key, module.value))
    dropout = module.dropout.p if module.training else 0.0
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(query.dtype)
    context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    return context.transpose(1, 2).reshape(len(tokens), -1, module.all_head_size)


def fuse_attention(model: nn.Module) -> None:
    """Let every layer of a ViltModel use `FusedAttention`, and its masks be made for it."""
    for module in model.modules():
        if type(module) is ViltSelfAttention:
            module.__class__ = FusedAttention
    model.config._attn_implementation = "sdpa"


def first_token_only(model: nn.Module, only: bool) -> bool:
    """Switch the last layer of a ViltModel to its first token, or back; return whether it is as transformers made it.

    What a method puts around a whole block is not known to `FirstTokenLayer`; nothing is switched then.
    """
    last = model.encoder.layer[-1]
    known = isinstance(last, ViltLayer) and type(last.attention) is ViltAttention
    known = known and isinstance(last.attention.attention, ViltSelfAttention)
    if known:
        last.__class__ = FirstTokenLayer if only else ViltLayer
    return known


def entering(model: nn.Module, batch: dict[str, Tensor], layer: int) -> Tensor:
    """Return what a layer of a ViltModel reads, (B, T, d): text tokens, then image tokens.

    Args:
        model: the ViltModel.
        batch: as `Vilt.with_ordered_patches` returns it for images of one size.
        layer: counted from 0.
    """
    hidden, seen = model.embeddings(
        batch["input_ids"], batch["attention_mask"], None, None, batch["pixel_mask"], None, batch["image_embeds"]
    )
    mask = create_bidirectional_mask(config=model.config, inputs_embeds=hidden, attention_mask=seen)
    for module in model.encoder.layer[:layer]:
        hidden = module(hidden, mask)[0]
    return hidden


def leaving(model: nn.Module, hidden: Tensor, text_mask: Tensor, layer: int) -> Tensor:
    """Return the pooled output (B, d) of what a layer reads.

    Args:
        model: the ViltModel.
        hidden: as `entering` returns it.
        text_mask: which text tokens are seen (B, T_text); all image tokens are.
        layer: counted from 0.
    """
    images = text_mask.new_ones(len(hidden), hidden.shape[1] - text_mask.shape[1])
    mask = create_bidirectional_mask(
        config=model.config, inputs_embeds=hidden, attention_mask=torch.cat((text_mask, images), dim=1)
    )
    for module in model.encoder.layer[layer:]:
        hidden = module(hidden, mask)[0]
    return model.pooler(model.layernorm(hidden))


def without_padding(hidden: Tensor, text_mask: Tensor) -> list[Tensor]:
    """Return each sample's tokens, (T_i, d), without those that pad its question."""
    seen = torch.cat((text_mask, text_mask.new_ones(len(hidden), hidden.shape[1] - text_mask.shape[1])), dim=1).bool()
    return [tokens[kept].clone() for tokens, kept in zip(hidden, seen, strict=True)]


def with_padding(samples: Sequence[Tensor], text_mask: Tensor) -> Tensor:
    """Return samples as `without_padding` made them as one tensor, their questions padded with zeros."""
    lengths = text_mask.sum(1).tolist()
    texts = pad_sequence([tokens[:length] for tokens, length in zip(samples, lengths, strict=True)], batch_first=True)
    texts = F.pad(texts, (0, 0, 0, text_mask.shape[1] - texts.shape[1]))
    images = torch.stack([tokens[length:] for tokens, length in zip(samples, lengths, strict=True)])
    return torch.cat((texts, images), dim=1)

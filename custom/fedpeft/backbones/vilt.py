# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""ViLT (Kim et al. 2021, arXiv:2102.03334): one transformer over question tokens and image patches.

The same class serves the full-size model (`dandelin/vilt-b32-mlm`) and the tiny one that ships with the package. With
fused attention, or a last layer only for the first token, a module gets another class and keeps its parts, also its
adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.vilt.modeling_vilt import ViltAttention, ViltLayer, ViltSelfAttention

from fedpeft.backbones import checkpoint
from fedpeft.backbones.images import Images, ProportionalImages, SquareImages
from fedpeft.backbones.matrices import without_weights

if TYPE_CHECKING:
    from fedpeft.backbones.registry import BackboneSettings

MODEL_NAME = "ViLT"


class FusedAttention(ViltSelfAttention):
    """Self-attention by torch's `scaled_dot_product_attention`, which keeps no attention matrix for the way back."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, output_attentions: bool = False
    ) -> tuple[Tensor]:
        return (attended(self, hidden_states, hidden_states, attention_mask),)


class FirstTokenLayer(ViltLayer):
    """A layer that computes only its first token, from all tokens of the layer before: (B, T, d) -> (B, 1, d)."""

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
    """Return what queries (B, Q, d) take from tokens (B, T, d), as (B, Q, d).

    The mask (B, 1, 1 or Q, T) has booleans (what is seen), or numbers that are added to the attention's logits.
    """
    shape = (len(tokens), -1, module.num_attention_heads, module.attention_head_size)
    query = module.query(queries).view(shape).transpose(1, 2)
    key, value = (part(tokens).view(shape).transpose(1, 2) for part in (module.key, module.value))
    dropout = module.dropout.p if module.training else 0.0
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(query.dtype)
    context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    return context.transpose(1, 2).reshape(len(tokens), -1, module.all_head_size)


def build(
    settings: BackboneSettings, *, images: Callable[[int, int], SquareImages | ProportionalImages], weights: bool = True
) -> Vilt:
    """Load ViLT and its tokenizer from a folder; `images` makes their preparation from image and patch size."""
    from transformers import BertTokenizerFast
    from transformers.models.vilt.modeling_vilt import ViltModel

    source = settings.source
    with checkpoint.reading(source, MODEL_NAME):
        checkpoint.check_kind(checkpoint.read_config(source), ("vilt",), source, MODEL_NAME)
        model = skeleton(source).model
        if weights:
            model, _ = checkpoint.load_model(
                ViltModel, source, what=MODEL_NAME, skeleton=lambda: skeleton(source).model
            )
        tokenizer = BertTokenizerFast.from_pretrained(source)
        checkpoint.check_vocabulary(tokenizer, model.config.vocab_size, source)
    patch = model.config.patch_size
    size = settings.image_size or model.config.image_size
    checkpoint.check_image_size(size, patch, source)
    checkpoint.check_text_length(settings.text_length, model.config.max_position_embeddings, source)
    return Vilt(model, tokenizer, images(size, patch), settings.text_length)


def build_tiny(settings: BackboneSettings, *, weights: bool = True) -> Vilt:
    return build(settings, images=lambda size, patch: SquareImages(size), weights=weights)


def build_full(settings: BackboneSettings, *, weights: bool = True) -> Vilt:
    return build(settings, images=ProportionalImages, weights=weights)


class Vilt(nn.Module):
    """A ViLT with its BERT tokenizer and its preparation of images; adapters are put into `model`."""

    family = "vilt"

    def __init__(self, model: nn.Module, tokenizer: Any, prepare: Any, text_length: int) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.prepare = prepare
        self.text_length = text_length
        self.hidden_size: int = model.config.hidden_size
        self.num_layers: int = model.config.num_hidden_layers
        self.image_size: int = getattr(prepare, "size", model.config.image_size)
        self.max_text: int = model.config.max_position_embeddings

    def collate(self, images: Images, questions: Sequence[str]) -> dict[str, Tensor]:
        """Turn B images (PIL, or (H, W, 3) uint8) and B questions into a batch; questions are padded to the longest."""
        text = self.tokenizer(
            list(questions), padding=True, truncation=True, max_length=self.text_length, return_tensors="pt"
        )
        return {"input_ids": text["input_ids"], "attention_mask": text["attention_mask"], **self.prepare(images)}

    def text_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizer(list(texts), verbose=False)["input_ids"]]

    def save_inputs(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)
        self.prepare.save(folder)

    def forward(self, **batch: Tensor) -> Tensor:
        return self.model(**self.with_ordered_patches(batch)).pooler_output

    def fuse_attention(self) -> None:
        """Let every layer use `FusedAttention`, and its masks be made for it."""
        for module in self.model.modules():
            if type(module) is ViltSelfAttention:
                module.__class__ = FusedAttention
        self.model.config._attn_implementation = "sdpa"

    def first_token_only(self, only: bool) -> bool:
        """Switch the last layer to its first token, or back; return whether it is as transformers made it.

        `FirstTokenLayer` knows no wrapper that a method puts around a whole block; nothing is switched then.
        """
        last = self.model.encoder.layer[-1]
        known = isinstance(last, ViltLayer) and type(last.attention) is ViltAttention
        known = known and isinstance(last.attention.attention, ViltSelfAttention)
        if known:
            last.__class__ = FirstTokenLayer if only else ViltLayer
        return known

    def entering(self, batch: dict[str, Tensor], layer: int) -> list[Tensor] | None:
        """Return each sample's tokens, of text and then of the image, as a layer reads them, (T_i, d).

        Padding of questions is left out; None for images of several sizes.
        """
        ordered = self.with_ordered_patches(batch)
        if "image_embeds" not in ordered:
            return None
        text_mask = batch["attention_mask"]
        hidden, seen = self.model.embeddings(
            ordered["input_ids"], text_mask, None, None, ordered["pixel_mask"], None, ordered["image_embeds"]
        )
        hidden = self._run_layers(self.model.encoder.layer[:layer], hidden, seen)
        kept = self._seen(text_mask, hidden.shape[1]).bool()
        return [tokens[rows].clone() for tokens, rows in zip(hidden, kept, strict=True)]

    def leaving(self, samples: Sequence[Tensor], batch: dict[str, Tensor], layer: int) -> Tensor:
        """Return the pooled output (B, d) of tokens as `entering` returns them."""
        text_mask = batch["attention_mask"]
        lengths = text_mask.sum(1).tolist()
        texts = pad_sequence(
            [sample[:length] for sample, length in zip(samples, lengths, strict=True)], batch_first=True
        )
        texts = F.pad(texts, (0, 0, 0, text_mask.shape[1] - texts.shape[1]))
        images = torch.stack([sample[length:] for sample, length in zip(samples, lengths, strict=True)])
        hidden = torch.cat((texts, images), dim=1)
        hidden = self._run_layers(self.model.encoder.layer[layer:], hidden, self._seen(text_mask, hidden.shape[1]))
        return self.model.pooler(self.model.layernorm(hidden))

    def _run_layers(self, layers: Iterable[nn.Module], hidden: Tensor, seen: Tensor) -> Tensor:
        """Return tokens (B, T, d) after some layers; `seen` (B, T) says which count."""
        mask = create_bidirectional_mask(config=self.model.config, inputs_embeds=hidden, attention_mask=seen)
        for module in layers:
            hidden = module(hidden, mask)[0]
        return hidden

    @staticmethod
    def _seen(text_mask: Tensor, length: int) -> Tensor:
        """Return which of all tokens count, (B, T): those of the text's mask (B, T_text), and all of the image."""
        return torch.cat((text_mask, text_mask.new_ones(len(text_mask), length - text_mask.shape[1])), dim=1)

    def with_ordered_patches(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Embed the patches in raster order where all images have one size; leave padded batches to transformers.

        transformers' `visual_embed` draws the order of the patches from torch's global generator, one image at a time.
        Attention does not see the order, so the pooled output is the same; this way costs less and needs no generator.
        """
        mask = batch.get("pixel_mask")
        if mask is not None and not bool(mask.all()):
            return batch
        embeddings = self.model.embeddings
        patches = embeddings.patch_embeddings(batch["pixel_values"])  # (B, d, h, w)
        height, width = patches.shape[-2:]
        if 0 < embeddings.config.max_image_length < height * width:
            return batch
        grid = embeddings.config.image_size // embeddings.config.patch_size
        place = embeddings.position_embeddings[:, 1:].transpose(1, 2).unflatten(2, (grid, grid))
        if (height, width) != (grid, grid):
            place = nn.functional.interpolate(place, size=(height, width), mode="bilinear", align_corners=True)
        tokens = (patches + place).flatten(2).transpose(1, 2)  # (B, h*w, d)
        first = (embeddings.cls_token + embeddings.position_embeddings[:, :1]).expand(len(tokens), -1, -1)
        tokens = embeddings.dropout(torch.cat([first, tokens], dim=1))
        kept = {name: value for name, value in batch.items() if name not in ("pixel_values", "pixel_mask")}
        seen = torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)
        return {**kept, "image_embeds": tokens, "pixel_mask": seen}


def skeleton(source: str | None = None) -> Vilt:
    """Return a ViLT without weights, tokenizer and images on torch's meta device: that of a source, or ViLT-B/32."""
    from transformers import ViltConfig
    from transformers.models.vilt.modeling_vilt import ViltModel

    with checkpoint.reading(source or "", MODEL_NAME):
        config = ViltConfig(**checkpoint.read_config(source)) if source else ViltConfig()
        with without_weights():
            return Vilt(ViltModel(config), None, None, config.max_position_embeddings)

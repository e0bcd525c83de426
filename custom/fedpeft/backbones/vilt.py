# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""ViLT (Kim et al. 2021, arXiv:2102.03334): one transformer over question tokens and image patches.

The same class serves the full-size model (`dandelin/vilt-b32-mlm`) and the tiny one that ships with the package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedpeft.backbones.checkpoint import (
    check_image_size,
    check_kind,
    check_text_length,
    check_vocabulary,
    load_model,
    read_config,
    reading,
)
from fedpeft.backbones.images import Images, ProportionalImages, SquareImages
from fedpeft.backbones.registry import TINY_FOLDER
from fedpeft.backbones.skeletons import without_weights

if TYPE_CHECKING:
    from fedpeft.backbones.settings import BackboneSettings

NAME = "ViLT"


def build(
    settings: BackboneSettings,
    *,
    images: Callable[[int, int], SquareImages | ProportionalImages],
    weights: bool = True,
) -> Vilt:
    """Load ViLT and its tokenizer from a folder.

    Args:
        settings: of the job.
        images: from image size and patch size to the preprocessing of images.
        weights: see `fedpeft.backbones.Pretrained.bare`.

    Raises:
        FedpeftError: the source is missing, damaged or not a ViLT; the setting does not fit it.
    """
    source = settings.source
    model, tokenizer = _load(source, weights)
    patch = model.config.patch_size
    size = settings.image_size or model.config.image_size
    check_image_size(size, patch, source)
    check_text_length(settings.text_length, model.config.max_position_embeddings, source)
    return Vilt(model, tokenizer, images(size, patch), settings.text_length)


def build_tiny(settings: BackboneSettings, *, weights: bool = True) -> Vilt:
    """Load the tiny ViLT, or another one that reads square images."""
    return build(settings, images=lambda size, patch: SquareImages(size), weights=weights)


def build_full(settings: BackboneSettings, *, weights: bool = True) -> Vilt:
    """Load ViLT-B/32, or another one that keeps the proportions of images."""
    return build(settings, images=ProportionalImages, weights=weights)


def _load(source: str, weights: bool) -> tuple[nn.Module, Any]:
    from transformers import BertTokenizerFast
    from transformers.models.vilt.modeling_vilt import ViltModel

    with reading(source, NAME):
        check_kind(read_config(source), ("vilt",), source, NAME)
        model = skeleton(source).model
        if weights:
            model, _ = load_model(ViltModel, source, what=NAME, skeleton=lambda: skeleton(source).model)
        tokenizer = BertTokenizerFast.from_pretrained(source)
        check_vocabulary(tokenizer, model.config.vocab_size, source)
    return model, tokenizer


class Vilt(nn.Module):
    """A ViLT with its tokenizer and image preparation.

    Args:
        model: transformers' ViltModel; adapters may be injected into it in place.
        tokenizer: a BERT tokenizer.
        prepare: images -> {"pixel_values": (B, 3, H, W) [, "pixel_mask": (B, H, W)]}.
        text_length: longest question in tokens.
    """

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
        self.longest_text: int = model.config.max_position_embeddings

    def collate(self, images: Images, questions: Sequence[str]) -> dict[str, Tensor]:
        """Turn B images (PIL, or (H, W, 3) uint8) and B questions into a batch; questions are padded to the longest."""
        text = self.tokenizer(
            list(questions), padding=True, truncation=True, max_length=self.text_length, return_tensors="pt"
        )
        return {"input_ids": text["input_ids"], "attention_mask": text["attention_mask"], **self.prepare(images)}

    def text_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text is, with those at its ends."""
        return [len(ids) for ids in self.tokenizer(list(texts), verbose=False)["input_ids"]]

    def save_inputs(self, folder: Path) -> None:
        """Write tokenizer and preparation of images as transformers reads them."""
        self.tokenizer.save_pretrained(folder)
        self.prepare.save(folder)

    def forward(self, **batch: Tensor) -> Tensor:
        """Return the pooled output (B, d) for a batch of `collate`."""
        return self.model(**self.with_ordered_patches(batch)).pooler_output

    def fuse_attention(self) -> None:
        """Use torch's fused attention in every layer."""
        from fedpeft.backbones.vilt_layers import fuse_attention

        fuse_attention(self.model)

    def first_token_only(self, only: bool) -> bool:
        """Compute the last layer for the first token alone, or for all again; see `vilt_layers.first_token_only`."""
        from fedpeft.backbones.vilt_layers import first_token_only

        return first_token_only(self.model, only)

    def entering(self, batch: dict[str, Tensor], layer: int) -> list[Tensor] | None:
        """Return each sample's tokens as a layer reads them, (T_i, d); None of images of several sizes."""
        from fedpeft.backbones import vilt_layers

        ordered = self.with_ordered_patches(batch)
        if "image_embeds" not in ordered:
            return None
        return vilt_layers.without_padding(vilt_layers.entering(self.model, ordered, layer), batch["attention_mask"])

    def leaving(self, samples: Sequence[Tensor], batch: dict[str, Tensor], layer: int) -> Tensor:
        """Return the pooled output (B, d) of tokens as `entering` returns them."""
        from fedpeft.backbones import vilt_layers

        mask = batch["attention_mask"]
        return vilt_layers.leaving(self.model, vilt_layers.with_padding(samples, mask), mask, layer)

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
    """Return a ViLT without weights, tokenizer and preprocessing of images, on torch's meta device.

    Args:
        source: whose configuration is read; None: that of ViLT-B/32.
    """
    from transformers import ViltConfig
    from transformers.models.vilt.modeling_vilt import ViltModel

    with reading(source or "", NAME):
        config = ViltConfig(**read_config(source)) if source else ViltConfig()
        with without_weights():
            return Vilt(ViltModel(config), None, None, config.max_position_embeddings)


def tiny_skeleton(source: str | None = None) -> Vilt:
    """Return the tiny ViLT, or another one, as `skeleton` does."""
    return skeleton(source or str(TINY_FOLDER))

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""ViT (Dosovitskiy et al. 2020, arXiv:2010.11929): a transformer over image patches; the question is not read.

Weights are read in transformers' layout, in timm's, and from a ViLT, whose layers are the same. The features are the
first token's after the last norm.

A file of the folder has the mean and deviation of each color that scaled pixels in training:

    transformers' folder   preprocessor_config.json: image_mean, image_std; what it leaves out is its processor's own
    timm's folder          config.json: mean and std in pretrained_cfg, or beside it in older ones

Without them both are 0.5, as transformers' ViTImageProcessor and timm's vision transformers document.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.vit.modeling_vit import ViTAttention, ViTLayer, eager_attention_forward

from fedpeft.backbones import checkpoint, weights
from fedpeft.backbones.images import COLORS, HALF, Images, SquareImages
from fedpeft.backbones.matrices import without_weights
from fedpeft.backbones.model_inputs import image_processor
from fedpeft.backbones.weights import TIMM_KEY, VILT_KEY, from_timm, from_vilt, misfits, timm_settings

if TYPE_CHECKING:
    from transformers import ViTConfig

    from fedpeft.backbones.registry import BackboneSettings


MODEL_NAME = "ViT"
TIMM_KINDS = (None, "timm_wrapper")  # `model_type` in timm's config.json, as transformers reads it
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
MAX_COLOR, MIN_DEVIATION = 1e3, 1e-4  # of pixels from 0 to 1: beyond them pixels end at infinity


class Scaling(NamedTuple):
    """Mean and deviation of each color, for `(x - mean) / deviation` of a pixel x of 0 to 1."""

    mean: tuple[float, ...] = HALF
    deviation: tuple[float, ...] = HALF


def scaling_of(source: str) -> Scaling:
    """Return the mean and deviation of each color that a source was trained with."""
    stored = checkpoint.read_config(source, timm=True)
    if stored.get("model_type") in TIMM_KINDS:
        described = stored.get("pretrained_cfg") or stored
        return _check_scaling("config.json", described.get("mean"), described.get("std"))
    named = [name for name in PROCESSORS if (Path(source) / name).is_file()]
    if not named:
        return Scaling()
    processor = image_processor(source)
    if getattr(processor, "do_flip_channel_order", False):
        raise ValueError(f"its {named[0]} has do_flip_channel_order, and images are given with red first")
    mean, deviation = (processor.image_mean, processor.image_std) if processor.do_normalize else (0, 1)
    scaling = _check_scaling(named[0], mean, deviation)
    if processor.do_rescale and getattr(processor, "rescale_offset", False):  # EfficientNet's pixels begin at -1
        scaling = _check_scaling(named[0], tuple(value + 1 for value in scaling.mean), scaling.deviation)
    if getattr(processor, "include_top", False):  # EfficientNet divides once more
        again = _check_scaling(named[0], 0, processor.image_std).deviation
        scaling = scaling._replace(deviation=tuple(map(math.prod, zip(scaling.deviation, again, strict=True))))
    factor = processor.rescale_factor if processor.do_rescale else 1
    if not (type(factor) in (int, float) and 0 < factor <= 1):
        raise ValueError(f"its {named[0]} has rescale_factor = {factor!r:.40}: give a number above 0, at most 1")
    if math.isclose(255 * factor, 1):
        return scaling
    return _check_scaling(named[0], *(tuple(value / (255 * factor) for value in values) for values in scaling))


def _check_scaling(file: str, mean: Any, deviation: Any) -> Scaling:
    """Return the scaling that a file has, the default where it has none; refuse one that makes pixels infinite."""
    means = HALF if mean is None else _colors(f"{file} has the mean", mean)
    deviations = HALF if deviation is None else _colors(f"{file} has the deviation", deviation)
    if min(deviations) < MIN_DEVIATION or max(map(abs, (*means, *deviations))) > MAX_COLOR:
        raise ValueError(
            f"its {file} scales colors by the mean {means} and the deviation {deviations}: give deviations from "
            f"{MIN_DEVIATION:g} on, and nothing beyond {MAX_COLOR:g}"
        )
    return Scaling(means, deviations)


def _colors(what: str, value: Any) -> tuple[float, ...]:
    values = (value,) * COLORS if type(value) in (int, float) else value
    numbers = isinstance(values, list | tuple) and all(type(number) in (int, float) for number in values)
    if not numbers or len(values) != COLORS or not all(map(math.isfinite, values)):
        raise ValueError(f"its {what} {value!r:.80} of colors: give {COLORS} numbers")
    return tuple(map(float, values))


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
    """A layer that computes only its first token, from all tokens of the layer before: (B, T, d) -> (B, 1, d)."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        attended, _ = self.attention(self.layernorm_before(hidden_states), attention_mask, **kwargs)
        hidden = self.dropout(attended) + hidden_states[:, :1]
        return self.dropout(self.mlp(self.layernorm_after(hidden))) + hidden


class Vit(nn.Module):
    """A ViT without pooler, with its preparation of images; adapters are put into `model`."""

    family = "vit"

    def __init__(self, model: nn.Module, image_size: int, scaling: Scaling | None = None) -> None:
        super().__init__()
        self.model = model
        self.image_size = image_size
        self.prepare = SquareImages(image_size, *(scaling or Scaling()))
        self.hidden_size: int = model.config.hidden_size
        self.num_layers: int = model.config.num_hidden_layers
        self._resized = image_size != model.config.image_size

    def collate(self, images: Images, questions: Sequence[str]) -> dict[str, Tensor]:
        """Turn B images (PIL, or (H, W, 3) uint8) into a batch; the questions are left out."""
        return self.prepare(images)

    def save_inputs(self, folder: Path) -> None:
        self.prepare.save(folder)

    def forward(self, **batch: Tensor) -> Tensor:
        """Return the first token after the last norm (B, d)."""
        return self.model(**batch, interpolate_pos_encoding=self._resized).last_hidden_state[:, 0]

    def entering(self, batch: dict[str, Tensor], layer: int) -> list[Tensor] | None:
        hidden = self.model.embeddings(batch["pixel_values"], interpolate_pos_encoding=self._resized)
        for module in self.model.layers[:layer]:
            hidden = module(hidden, None)
        return list(hidden)

    def leaving(self, samples: Sequence[Tensor], batch: dict[str, Tensor], layer: int) -> Tensor:
        hidden = torch.stack(list(samples))
        for module in self.model.layers[layer:]:
            hidden = module(hidden, None)
        return self.model.layernorm(hidden)[:, 0]

    def first_token_only(self, only: bool) -> bool:
        """Switch the last layer to its first token, or back; return whether it is as transformers made it."""
        last = self.model.layers[-1]
        attention = getattr(last.attention, "base_layer", last.attention) if isinstance(last, ViTLayer) else None
        if not isinstance(attention, ViTAttention):
            return False
        last.__class__ = FirstTokenLayer if only else ViTLayer
        attention.__class__ = FirstTokenAttention if only else ViTAttention
        return True


def build(settings: BackboneSettings) -> Vit:
    """Load ViT-B/16, or another vision transformer, from a folder."""
    source = settings.source
    with checkpoint.reading(source, MODEL_NAME):
        model, scaling = load(source), scaling_of(source)
    size = settings.image_size or model.config.image_size
    checkpoint.check_image_size(size, model.config.patch_size, source)
    return Vit(model, size, scaling)


def skeleton(source: str | None = None) -> Vit:
    """Return a ViT without weights on torch's meta device: that of a source, or ViT-B/16."""
    from transformers import ViTConfig

    with checkpoint.reading(source or "", MODEL_NAME):
        config = ViTConfig(**_config(source)) if source else ViTConfig()
        return Vit(_empty(config), config.image_size)


def _config(source: str) -> dict[str, Any]:
    stored = checkpoint.read_config(source, timm=True)
    if stored.get("model_type") == "vilt":
        return {name: value for name, value in stored.items() if name not in ("model_type", "architectures")}
    if stored.get("model_type") in TIMM_KINDS and TIMM_KEY in (shapes := weights.stored(Path(source))):
        return timm_settings(shapes, stored)
    checkpoint.check_kind(stored, ("vit",), source, MODEL_NAME)
    return stored


def is_timm(source: str) -> bool:
    """Return whether a folder is timm's, whose config.json transformers does not read."""
    return checkpoint.read_config(source, timm=True).get("model_type") in TIMM_KINDS


def load(source: str) -> nn.Module:
    """Return the model of a folder in any of the three layouts, without a pooler."""
    from safetensors.torch import load_file
    from transformers import ViTConfig
    from transformers.models.vit.modeling_vit import ViTModel

    settings = _config(source)
    if settings.get("model_type") == "vit":
        return checkpoint.load_model(
            ViTModel,
            source,
            what=MODEL_NAME,
            skeleton=lambda: _empty(ViTConfig(**settings)),
            options={"add_pooling_layer": False},
        )[0]
    stored = load_file(Path(source) / weights.WEIGHTS)
    tensors = {name: tensor.to(torch.float32) for name, tensor in stored.items()}
    kept, unknown = from_vilt(tensors) if VILT_KEY in tensors else from_timm(tensors)
    if unknown:
        raise checkpoint.unusable(
            f"The weights in {source!r} have {len(unknown)} tensors that a ViT does not have, first {unknown[0]}: give "
            f"the folder of a plain vision transformer."
        )
    model = _empty(ViTConfig(**settings))
    checkpoint.check_complete(misfits(kept, dict(model.named_parameters())), source, MODEL_NAME)
    model.load_state_dict(kept, strict=True, assign=True)
    return model


def _empty(config: ViTConfig) -> nn.Module:
    from transformers.models.vit.modeling_vit import ViTModel

    with without_weights():
        return ViTModel(config, add_pooling_layer=False)

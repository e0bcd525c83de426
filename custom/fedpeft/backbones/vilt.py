# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""ViLT (Kim et al. 2021, arXiv:2102.03334): one transformer over question tokens and image patches.

The same class serves the full-size model (`dandelin/vilt-b32-mlm`) and the tiny one that ships with the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from fedpeft.backbones import Pretrained, weights
from fedpeft.errors import FedpeftError, LocalError

if TYPE_CHECKING:
    from fedpeft.backbones import BackboneSettings

UNUSABLE = "backbone-unusable"
TINY_FOLDER = Path(__file__).parent / "tiny_vilt"

Images = Sequence["Image.Image | np.ndarray"]


def build(
    settings: BackboneSettings, *, usual: str, images: Callable[[int, int], SquareImages | ProportionalImages]
) -> Vilt:
    """Load ViLT and its tokenizer from a folder, the hub, or the package.

    Args:
        settings: of the job.
        usual: source of the weights if the settings name none.
        images: from image size and patch size to the preprocessing of images.

    Raises:
        FedpeftError: the source is missing, unreachable, damaged or not a ViLT; the setting does not fit it.
    """
    source = settings.source or usual
    model, tokenizer = _load(source)
    patch = model.config.patch_size
    size = settings.image_size or model.config.image_size
    if size % patch:
        raise FedpeftError(
            f"image_size is {size}, it must be a multiple of the patch size {patch} of {source}.",
            setting="backbone.image_size",
        )
    longest = model.config.max_position_embeddings
    if settings.text_length > longest:
        raise FedpeftError(
            f"text_length is {settings.text_length}, {source} reads at most {longest} tokens: lower it.",
            setting="backbone.text_length",
        )
    return Vilt(model, tokenizer, images(size, patch), settings.text_length)


def _load(source: str) -> tuple[nn.Module, Any]:
    from transformers import BertTokenizerFast
    from transformers.configuration_utils import PreTrainedConfig
    from transformers.models.vilt.modeling_vilt import ViltModel

    try:
        config = PreTrainedConfig.get_config_dict(source)[0]
        kind = config.get("model_type")
        if kind != "vilt":
            raise FedpeftError(
                f"{source} does not hold a ViLT (model_type {kind!r} in its config.json): give another folder or name.",
                code=UNUSABLE,
            )
        if Path(source).is_dir():
            weights.check_folder(Path(source), config)
        with _quiet():
            model, report = ViltModel.from_pretrained(
                source,
                dtype=torch.float32,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        tokenizer = BertTokenizerFast.from_pretrained(source)
    except FedpeftError:
        raise
    except Exception as error:  # the hub, safetensors, tokenizers and torch each raise their own kinds
        where = "folder" if Path(source).exists() else "hub name or folder"
        first = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        if "use_safetensors" in first and isinstance(error, OSError):  # transformers recommends the pickle
            first = f"it has no {weights.WEIGHTS}; {weights.REMEDY}"
        raise LocalError(
            f"ViLT cannot be loaded from the {where} {source!r} ({first}): download it once where there is a network "
            f"and give that folder (config.json, model.safetensors, tokenizer files) as source.",
            code=UNUSABLE,
        ) from error
    lacking = sorted(report["missing_keys"]) + sorted(key for key, *_ in report["mismatched_keys"])
    if lacking:
        raise FedpeftError(
            f"The weights in {source!r} are not a complete ViLT ({len(lacking)} tensors missing or of another shape, "
            f"first {lacking[0]}): give the folder of a whole ViLT checkpoint.",
            code=UNUSABLE,
        )
    if len(tokenizer) > model.config.vocab_size:
        raise FedpeftError(
            f"The tokenizer in {source!r} has {len(tokenizer)} tokens, the model {model.config.vocab_size}: give a "
            f"folder whose vocab.txt belongs to its model.safetensors.",
            code=UNUSABLE,
        )
    return model, tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' progress bar and its table of keys, whose problems are raised as errors instead."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


class SquareImages:
    """Resize every image to `size` x `size` pixels, scaled to [-1, 1]."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, images: Images) -> dict[str, Tensor]:
        pixels = np.stack([self._pixels(image) for image in images]).astype(np.float32)
        return {"pixel_values": torch.from_numpy(pixels).permute(0, 3, 1, 2).div_(127.5).sub_(1).contiguous()}

    def _pixels(self, image: Image.Image | np.ndarray) -> np.ndarray:
        if isinstance(image, np.ndarray) and image.shape == (self.size, self.size, 3):
            return image
        image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
        return np.asarray(image.convert("RGB").resize((self.size, self.size), Image.Resampling.BICUBIC))


class ProportionalImages:
    """Scale the shortest side to `size` pixels and pad the batch, as ViLT was trained (transformers' PIL processor)."""

    def __init__(self, size: int, patch: int) -> None:
        from transformers.models.vilt.image_processing_pil_vilt import ViltImageProcessorPil

        self.processor = ViltImageProcessorPil(size={"shortest_edge": size}, size_divisor=patch)

    def __call__(self, images: Images) -> dict[str, Tensor]:
        pictures = [Image.fromarray(i) if isinstance(i, np.ndarray) else i for i in images]
        return dict(self.processor([picture.convert("RGB") for picture in pictures], return_tensors="pt"))


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

    def collate(self, images: Images, questions: Sequence[str]) -> dict[str, Tensor]:
        """Turn B images (PIL, or (H, W, 3) uint8) and B questions into a batch; questions are padded to the longest."""
        text = self.tokenizer(
            list(questions), padding=True, truncation=True, max_length=self.text_length, return_tensors="pt"
        )
        return {"input_ids": text["input_ids"], "attention_mask": text["attention_mask"], **self.prepare(images)}

    def forward(self, **batch: Tensor) -> Tensor:
        """Return the pooled output (B, d) for a batch of `collate`."""
        return self.model(**self.with_ordered_patches(batch)).pooler_output

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


def skeleton(config: dict[str, Any] | Path) -> Vilt:
    """Return a ViLT without weights, tokenizer and preprocessing of images, on torch's meta device.

    Args:
        config: values that differ from ViLT-B/32's, or the folder of a model.
    """
    from transformers import ViltConfig
    from transformers.models.vilt.modeling_vilt import ViltModel

    chosen = ViltConfig.from_pretrained(config) if isinstance(config, Path) else ViltConfig(**config)
    with torch.device("meta"):
        return Vilt(ViltModel(chosen), None, None, chosen.max_position_embeddings)


TINY_VILT = Pretrained(
    build=partial(build, usual=str(TINY_FOLDER), images=lambda size, patch: SquareImages(size)),
    usual=str(TINY_FOLDER),
    skeleton=partial(skeleton, TINY_FOLDER),
    tiny=True,
)
VILT_B32 = "dandelin/vilt-b32-mlm"
VILT = Pretrained(
    build=partial(build, usual=VILT_B32, images=ProportionalImages), usual=VILT_B32, skeleton=partial(skeleton, {})
)

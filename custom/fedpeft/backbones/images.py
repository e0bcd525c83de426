# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Turn images into the pixel tensors of ViLT and ViT, without torchvision, and find the size of a model's patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

Images = Sequence["Image.Image | np.ndarray"]
COLORS = 3  # red, green and blue
HALF = (0.5,) * COLORS

CONVOLUTIONS = (nn.Conv2d, nn.Conv3d)


def pictures(images: Images) -> list[Image.Image]:
    """Return images, PIL or (H, W, 3) uint8, as RGB pictures of PIL."""
    return [(Image.fromarray(image) if isinstance(image, np.ndarray) else image).convert("RGB") for image in images]


class SquareImages:
    """Resize every image to `size` x `size` pixels and scale its colors, `(x - mean) / deviation` for x of 0 to 1.

    With a mean and deviation of 0.5, the default, pixels become -1 to 1.
    """

    def __init__(self, size: int, mean: Sequence[float] = HALF, deviation: Sequence[float] = HALF) -> None:
        self.size, self.mean, self.deviation = size, tuple(mean), tuple(deviation)

    def __call__(self, images: Images) -> dict[str, Tensor]:
        pixels = torch.from_numpy(np.stack([self._pixels(image) for image in images]).astype(np.float32))
        pixels = pixels.permute(0, 3, 1, 2)
        if (self.mean, self.deviation) == (HALF, HALF):
            return {"pixel_values": pixels.div_(127.5).sub_(1).contiguous()}
        mean, deviation = (torch.tensor(values)[:, None, None] for values in (self.mean, self.deviation))
        return {"pixel_values": pixels.div_(255).sub_(mean).div_(deviation).contiguous()}

    def save(self, folder: Path) -> None:
        from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

        side = {"height": self.size, "width": self.size}
        colors = {"image_mean": list(self.mean), "image_std": list(self.deviation)}
        ViTImageProcessorPil(size=side, resample=3, **colors).save_pretrained(folder)

    def _pixels(self, image: Image.Image | np.ndarray) -> np.ndarray:
        if isinstance(image, np.ndarray) and image.shape == (self.size, self.size, 3):
            return image
        image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
        return np.asarray(image.convert("RGB").resize((self.size, self.size), Image.Resampling.BICUBIC))


class ProportionalImages:
    """Scale the shortest side to `size` pixels and pad the batch, as ViLT was trained (transformers' PIL processor).

    Sides become whole patches; a shorter side that would become less than one patch is stretched to one.
    """

    def __init__(self, size: int, patch: int) -> None:
        from transformers.models.vilt.image_processing_pil_vilt import (
            MAX_LONGER_EDGE,
            MAX_SHORTER_EDGE,
            ViltImageProcessorPil,
        )

        self.size, self.patch = size, patch
        self.max_side = int(MAX_LONGER_EDGE / MAX_SHORTER_EDGE * size)
        self.processor = ViltImageProcessorPil(size={"shortest_edge": size}, size_divisor=patch)

    def save(self, folder: Path) -> None:
        self.processor.save_pretrained(folder)

    def __call__(self, images: Images) -> dict[str, Tensor]:
        return dict(self.processor(list(map(self._widened, pictures(images))), return_tensors="pt"))

    def _widened(self, image: Image.Image) -> Image.Image:
        longer, shorter = max(image.size), min(image.size)
        if shorter * self.max_side >= longer * self.patch:
            return image
        width, height = (self.patch if side == shorter else self.max_side for side in image.size)
        return image.resize((width, height), Image.Resampling.BICUBIC)


def patch_area(model: nn.Module) -> int:
    """Return the pixels of a patch, height times width; 0: the model embeds no patches of images.

    A patch embedding is a convolution that reads an image's colors with a stride of its own size. A model without one
    cuts patches before a linear layer, and declares their size in its configuration as `patch_size`.
    """
    for module in model.modules():
        if isinstance(module, CONVOLUTIONS) and module.in_channels == COLORS and module.kernel_size == module.stride:
            return math.prod(module.kernel_size[-2:])
    config = getattr(model, "config", None)
    for part in (config, getattr(config, "vision_config", None)):
        if isinstance(size := getattr(part, "patch_size", None), int):
            return size * size
    return 0

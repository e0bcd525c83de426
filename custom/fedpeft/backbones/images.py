# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Turn images into pixel tensors, without torchvision, encode them by a frozen encoder, and find a patch's size."""

from __future__ import annotations

import hashlib
import inspect
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from fedpeft.backbones.backbone import ALL, LAST
from fedpeft.core.errors import FedpeftError
from fedpeft.core.states import digest

Classes = Callable[[], tuple[Tensor, list[str]]]  # rows of a classifier (C, d_image), and the name of each class
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


class EncodedImages:
    """The features that frozen encoders made of images, by the encoder's values and the image's pixels.

    A lookup needs the image itself, so sites and runs of one process may share them.
    """

    def __init__(self) -> None:
        self._features: dict[bytes, Tensor] = {}
        self._unused: dict[bytes, None] = {}  # what this run has not used yet, the newest first
        self.held = 0  # bytes
        self.seconds = 0.0  # of all processors, in which kept features were made

    def begin_run(self) -> None:
        """Let features that only earlier runs used make room where there is none."""
        self._unused = dict.fromkeys(reversed(self._features))

    def get(self, name: bytes) -> Tensor | None:
        """Return kept features; None: there are none."""
        self._unused.pop(name, None)
        return self._features.get(name)

    def add(self, name: bytes, made: Tensor, limit: int) -> bool:
        """Keep features unless more than the limit would be held; return whether they are kept."""
        while self._unused and made.nbytes <= limit < self.held + made.nbytes:
            self.held -= self._features.pop(self._unused.popitem()[0]).nbytes
        if self.held + made.nbytes > limit:
            return False
        self._features[name] = made.cpu()
        self.held += made.nbytes
        return True


class ImageEncoder(nn.Module):
    """A frozen image encoder, always in evaluation mode, that keeps features of images as far as memory allows.

    Args:
        encoder: returns as `last_hidden_state` a grid (B, d, h, w), or tokens (B, T, d) that end with a square grid;
            with `output_hidden_states` also such of every layer.
        size: pixels of each side of an image.
        width: d, of its last features.
        grid: how many cells each side of the image has.
        layers: of which layers the means are, `last` or `all`.
        classes: returns the classifier that it was trained with.
    """

    def __init__(
        self, encoder: nn.Module, size: int, width: int, *, grid: int, layers: str = LAST, classes: Classes
    ) -> None:
        super().__init__()
        self.encoder, self.grid, self.classes = encoder.requires_grad_(False).eval(), grid, classes
        self._options: dict[str, Any] = {}
        if "interpolate_pos_encoding" in inspect.signature(type(encoder).forward).parameters:
            self._options["interpolate_pos_encoding"] = True
        self.kept, self._limit, self._name = EncodedImages(), 0, b""
        self.widths = [width]
        if layers == ALL:
            self._options["output_hidden_states"] = True
            with torch.no_grad():
                self.widths = [layer.shape[1] for layer in self._layers(torch.zeros(1, COLORS, size, size))]

    def train(self, mode: bool = True) -> ImageEncoder:
        """Stay in evaluation mode: the statistics of batch norms are those of pre-training."""
        return super().train(False)

    def keep(self, limit: int, kept: EncodedImages | None = None) -> None:
        """Keep the features of each image, in at most `limit` bytes of main memory; see `Backbone.keep_encoded`."""
        self.kept, self._limit = kept if kept is not None else self.kept, limit
        config = getattr(self.encoder, "config", None)
        facts = (
            *(self.grid, self.widths, type(self.encoder).__name__, config and config.to_json_string()),
            *(next(self.parameters()).device, torch.get_num_threads()),  # both may change the last bits
        )
        self._name = bytes.fromhex(digest(self.state_dict(), after=f"{facts} ".encode()))

    def forward(self, pixels: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the cells of images (B, 3, H, W), (B, n, d), and the mean of each layer's grid, (B, d) each."""
        made = torch.stack([self._features(image) for image in pixels])
        cells, *means = made.split([made.shape[1] - sum(self.widths), *self.widths], dim=1)
        return cells.unflatten(1, (-1, self.widths[-1])), means

    def _features(self, image: Tensor) -> Tensor:
        if not self._limit or image.requires_grad:
            return self._encoded(image)
        name = hashlib.blake2b(image.cpu().contiguous().numpy().data, digest_size=16, key=self._name).digest()
        if (kept := self.kept.get(name)) is not None:
            return kept.to(image.device)
        began = time.process_time()
        made = self._encoded(image)
        if self.kept.add(name, made, self._limit):
            self.kept.seconds += time.process_time() - began
        return made

    def _encoded(self, image: Tensor) -> Tensor:
        """Return the cells of an image one after the other, then the mean of each layer: (n d + sum of widths,)."""
        with torch.set_grad_enabled(image.requires_grad), torch.autocast(image.device.type, enabled=False):
            layers = self._layers(image[None])
            cells = F.adaptive_avg_pool2d(layers[-1], self.grid)[0].flatten(1).T
            return torch.cat([cells.flatten(), *(layer.mean((2, 3))[0] for layer in layers)])

    def _layers(self, pixels: Tensor) -> list[Tensor]:
        """Return what the layers make of images, (B, d, h, w) each; the last is the encoder's output."""
        made = self.encoder(pixels, **self._options)
        if "output_hidden_states" not in self._options:
            return [as_grid(made["last_hidden_state"])]
        layers = made.get("hidden_states") or [None]
        if not all(isinstance(layer, Tensor) and layer.dim() in (3, 4) for layer in layers):
            raise FedpeftError(
                f"image_layers is {ALL!r}, and {type(self.encoder).__name__} does not return what its layers make: "
                f"leave it out.",
                setting="backbone.image_layers",
            )
        last = made["last_hidden_state"]
        earlier = layers[:-1] if layers[-1].shape == last.shape else layers  # some end with one more convolution
        return [as_grid(layer) for layer in (*earlier, last)]


def as_grid(features: Tensor) -> Tensor:
    """Return features as (B, d, h, w); tokens (B, T, d) may begin with others than those of the grid."""
    if features.dim() == 4:
        return features
    side = math.isqrt(features.shape[1])
    return features[:, -side * side :].transpose(1, 2).unflatten(2, (side, side))


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

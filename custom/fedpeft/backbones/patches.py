# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The patches into which a model cuts images, read off the layer that embeds them."""

from __future__ import annotations

import math

from torch import nn

from fedpeft.backbones.images import COLORS

CONVOLUTIONS = (nn.Conv2d, nn.Conv3d)


def patch_area(model: nn.Module) -> int:
    """Return the pixels of a patch, height times width; 0: the model embeds no patches of images.

    A patch embedding is a convolution that reads an image's colors and moves on by its own size. Where there is none,
    because patches are cut before a linear layer, it is what the configuration declares as `patch_size`.

    Args:
        model: with or without adapters.
    """
    for module in model.modules():
        if isinstance(module, CONVOLUTIONS) and module.in_channels == COLORS and module.kernel_size == module.stride:
            return math.prod(module.kernel_size[-2:])
    config = getattr(model, "config", None)
    for part in (config, getattr(config, "vision_config", None)):
        if isinstance(size := getattr(part, "patch_size", None), int):
            return size * size
    return 0

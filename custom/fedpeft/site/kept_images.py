# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Decoded images of files and tables, kept in main memory within a budget, so that a file is read and decoded once."""

from __future__ import annotations

import numpy as np
from PIL import Image

from fedpeft.data.images import ImageSource, open_image

MIB = 2**20


class KeptImages:
    """Open images; the first ones that fit are kept as 8-bit RGB.

    Args:
        mib: the most that is kept.
    """

    def __init__(self, mib: float) -> None:
        self._limit, self._held = mib * MIB, 0
        self._images: dict[str, np.ndarray] = {}

    def open(self, image: ImageSource) -> Image.Image:
        """Open an image; see `fedpeft.data.images.open_image`."""
        if isinstance(image, np.ndarray):
            return open_image(image)
        name = str(image)
        if name in self._images:
            return Image.fromarray(self._images[name])
        opened = open_image(image)
        size = 3 * opened.width * opened.height
        if self._held + size <= self._limit:
            self._images[name] = np.asarray(opened)
            self._held += size
        return opened

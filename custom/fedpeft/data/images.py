# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read images as 8-bit RGB.

Gray, palette and CMYK files become RGB. Transparent pixels become black, like the background of a radiograph; an opaque
RGBA file keeps its colors. Files with more than 8 bits per gray value are refused: which window of the range shows the
finding is a clinical choice, and a wrong window hides it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from fedpeft.data.errors import DataError


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image file inside a table, read and decoded when it is needed.

    Args:
        name: its place, as errors give it; no two have the same.
        read: returns the bytes of the file.
    """

    name: str
    read: Callable[[], bytes] = field(compare=False)

    def __str__(self) -> str:
        return self.name


def open_image(image: Path | str | np.ndarray | EncodedImage) -> Image.Image:
    """Open an image as a PIL image in mode RGB.

    Args:
        image: path of an image file, an image file inside a table, or an (H, W, 3) uint8 array.

    Raises:
        DataError: the file is missing, corrupt, cut off, or has 16 or more bits per gray value; the array has another
            shape or type.
    """
    if isinstance(image, np.ndarray):
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
            raise DataError(
                f"An image array has shape {image.shape} and type {image.dtype}; it must be (height, width, 3), uint8."
            )
        return Image.fromarray(np.ascontiguousarray(image))
    try:
        with Image.open(BytesIO(image.read()) if isinstance(image, EncodedImage) else image) as opened:
            opened.load()
            return _as_rgb(opened, str(image))
    except FileNotFoundError as error:
        raise DataError(f"The image {image} is missing; restore the file or remove its rows.") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"The image {image} cannot be decoded; replace the file by a sound copy.") from error


def as_array(image: Path | str | np.ndarray | EncodedImage) -> np.ndarray:
    """Return the image as an (H, W, 3) uint8 array; raises as `open_image`."""
    return np.asarray(open_image(image))


def _as_rgb(image: Image.Image, path: str) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        raise DataError(
            f"The image {path} has more than 8 bits per pixel (mode {image.mode}); choose a window, save 8-bit."
        )
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        colored = image.convert("RGBA")
        black = Image.new("RGBA", colored.size, (0, 0, 0, 255))
        return Image.alpha_composite(black, colored).convert("RGB")
    return image.convert("RGB")

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read images as 8-bit RGB, and refuse what is no single picture with 8 bits per channel.

Gray, palette and CMYK files become RGB. Transparent pixels become black, like the background of a radiograph; an opaque
RGBA file keeps its colors. A photograph is turned as its EXIF orientation says, so that the model sees what a viewer
shows. Files with more than 8 bits per channel are refused: which window of the range shows the finding is a clinical
choice, and a wrong window hides it. For the same reason files with several frames are, and images of which nothing is
visible.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps

from fedpeft.data.errors import DataError, UnreadableImage
from fedpeft.data.window import Window

FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")  # none that runs another program
MOST_PIXELS = 89_478_485  # Pillow warns from here on, and refuses twice as many
ONE_PICTURE = ("MPO",)  # a camera's photograph with smaller copies of it
UPRIGHT = 1  # an orientation in EXIF
SOUND_COPY = "replace the file by a sound copy"
# what Pillow's readers raise for files that are not what they begin as
BROKEN = (OSError, SyntaxError, ValueError, LookupError, TypeError, EOFError, ArithmeticError, struct.error, zlib.error)

Result = TypeVar("Result")


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


@dataclass(frozen=True, slots=True)
class ChosenImage:
    """A part of an image file, see `fedpeft.data.chosen_image`.

    Args:
        file: its path.
        part: what stands behind the file's name and `#`; empty: the file has one image, or its middle slice is meant.
        window: of gray values of more than 8 bits; None: the file's own, if it has one.
    """

    file: Path
    part: str
    window: Window | None

    def __str__(self) -> str:
        return f"{self.file}#{self.part}" if self.part else str(self.file)


ImageSource = Path | str | np.ndarray | EncodedImage | ChosenImage


def open_image(image: ImageSource) -> Image.Image:
    """Open an image as a PIL image in mode RGB.

    Args:
        image: path of an image file, a part of one, an image file inside a table, or an (H, W, 3) uint8 array.

    Raises:
        UnreadableImage: the file is missing, corrupt, cut off, too large, fully transparent, or has several frames or
            more than 8 bits per channel.
        DataError: the array has another shape or type.
    """
    if isinstance(image, np.ndarray):
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
            raise DataError(
                f"An image array has shape {image.shape} and type {image.dtype}; it must be (height, width, 3), uint8."
            )
        return Image.fromarray(np.ascontiguousarray(image))
    if isinstance(image, ChosenImage):
        from fedpeft.data.chosen_image import open_chosen

        return open_chosen(image)
    return with_file(image, decoded)


def check_header(image: ImageSource) -> bool:
    """Refuse a file of which its header alone says that `open_image` will; that its pixels are sound stays open.

    Arrays, and files inside tables, which would have to be read for it, are not looked at. Returns whether the header
    says that a photograph is turned.

    Raises:
        UnreadableImage: as `open_image`.
    """
    if isinstance(image, ChosenImage):
        from fedpeft.data.chosen_image import open_chosen

        open_chosen(image, pixels=False)
    elif not isinstance(image, np.ndarray | EncodedImage):
        return with_file(image, _checked_form)
    return False


def as_array(image: ImageSource) -> np.ndarray:
    """Return the image as an (H, W, 3) uint8 array; raises as `open_image`."""
    return np.asarray(open_image(image))


def with_file(image: Path | str | EncodedImage, use: Callable[[Image.Image, str], Result]) -> Result:
    """Open a file, and return what a function makes of it and of its name."""
    try:
        content = BytesIO(image.read()) if isinstance(image, EncodedImage) else image
        with Image.open(content, formats=FORMATS) as opened:
            return use(opened, str(image))
    except FileNotFoundError as error:
        raise UnreadableImage.of(image, "is missing", "restore the file or remove its rows") from error
    except Image.DecompressionBombError as error:
        raise _too_large(str(image)) from error
    except DataError:
        raise
    except BROKEN as error:
        raise UnreadableImage.of(image, "cannot be decoded", SOUND_COPY) from error


def decoded(
    opened: Image.Image, name: str, *, one_frame: bool = True, pixels: bool = True, deep: bool = False
) -> Image.Image:
    """Return a file's image, or the frame that it stands at, in mode RGB.

    Args:
        opened: the file.
        name: for errors.
        one_frame: refuse several.
        pixels: False: check its form alone.
        deep: more than 8 bits per channel are allowed.

    Raises:
        UnreadableImage: see `open_image`.
    """
    _check_form(opened, name, one_frame=one_frame, deep=deep)
    if not pixels:
        return opened
    opened.load()
    return as_rgb(ImageOps.exif_transpose(opened) if _is_turned(opened) else opened, name)


def is_deep(opened: Image.Image) -> bool:
    """Return whether a file has more than 8 bits per channel, also where Pillow would cut them off."""
    cut = any(";16" in str(tile[3]) for tile in getattr(opened, "tile", ()))
    return cut or opened.mode in ("I", "F") or opened.mode.startswith("I;")


def _is_turned(image: Image.Image) -> bool:
    try:
        return image.getexif().get(ExifTags.Base.Orientation, UPRIGHT) != UPRIGHT
    except BROKEN:  # the pixels are sound all the same
        return False


def _checked_form(opened: Image.Image, name: str) -> bool:
    _check_form(opened, name)
    return "exif" in opened.info and _is_turned(opened)  # elsewhere PNG has it behind the pixels


def _check_form(opened: Image.Image, name: str, *, one_frame: bool = True, deep: bool = False) -> None:
    if opened.width * opened.height > MOST_PIXELS:
        raise _too_large(name)
    if one_frame and opened.format not in ONE_PICTURE and (frames := getattr(opened, "n_frames", 1)) > 1:
        raise UnreadableImage.of(name, f"has {frames} frames", "choose one: save it alone, or in a manifest add #0")
    if is_deep(opened) and not deep:
        why = f"has more than 8 bits per channel (mode {opened.mode})"
        raise UnreadableImage.of(name, why, "choose a window: save it with 8 bits, or in a manifest set data.window")


def _too_large(name: str) -> UnreadableImage:
    return UnreadableImage.of(name, f"has more than {MOST_PIXELS // 10**6} million pixels", "save a smaller one")


def as_rgb(image: Image.Image, name: str) -> Image.Image:
    """Return an image in mode RGB, transparent pixels black; refuse one that is transparent altogether."""
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        colored = image.convert("RGBA")
        if colored.getchannel("A").getextrema()[1] == 0:
            raise UnreadableImage.of(name, "is fully transparent", "save it without its alpha channel")
        black = Image.new("RGBA", colored.size, (0, 0, 0, 255))
        return Image.alpha_composite(black, colored).convert("RGB")
    return image.convert("RGB")

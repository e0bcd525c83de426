# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read images as 8-bit RGB, and refuse files that are not a single picture with 8 bits per channel.

Gray, palette and CMYK files become RGB. Transparent pixels become black, like the background of a radiograph; an opaque
RGBA file keeps its colors. A photograph is turned as its EXIF orientation says, so that the model sees what a viewer
shows. Files with more than 8 bits per channel are refused: which window of the range shows the finding is a clinical
choice, and a wrong window hides it. For the same reason files with several frames are refused. So are images without a
visible pixel.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps

from fedpeft.core.errors import DataError, UnreadableImage
from fedpeft.data.settings import Window

FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")  # none that runs another program
ONE_FRAME = "save one frame as a file of its own, or list it in a manifest with #0 after its name"
EIGHT_BITS = "save it with 8 bits per channel, or list it in a manifest and set data.window"
MAX_OF_8_BITS = 255
TIFF_BITS, TIFF_SAMPLES, UNSIGNED, SIGNED = 258, 339, 1, 2  # the tags BitsPerSample and SampleFormat
CODESTREAM, COMPONENTS = b"\xff\x4f\xff\x51", 40  # of JPEG 2000: its begin, and from there the number of components
MAX_BOXES = 2**20  # bytes before the codestream
UNKNOWN_BITS = 99  # also for signed values, since Pillow adds half of their range to them
MAX_PIXELS = 89_478_485  # Pillow warns from here on, and refuses twice as many
ONE_PICTURE = ("MPO",)  # a camera's photograph with smaller copies of it
TURNED, ASIDE = range(2, 9), range(5, 9)  # orientations in EXIF: all but upright, and those on one side
MAX_EXIF = 1 << 20  # bytes that are read for the orientation, whatever length a file declares
MAX_CHUNKS = 1 << 16  # of a PNG: 8 KiB each, as they often are, make half a gigabyte
PNG_BEGIN, PNG_CHUNK, PNG_CHECK = b"\x89PNG\r\n\x1a\n", struct.Struct(">I4s"), 4  # bytes
SOUND_COPY = "replace the file by a sound copy"
# what Pillow's readers raise for files that do not go on as they begin
BROKEN = (OSError, SyntaxError, ValueError, LookupError, TypeError, EOFError, ArithmeticError, struct.error, zlib.error)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image file inside a table, read and decoded when it is needed."""

    name: str  # its place, as errors give it; no two have the same
    read: Callable[[], bytes] = field(compare=False)  # returns the bytes of the file

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ChosenImage:
    """A part of an image file, see `fedpeft.data.chosen_image`."""

    file: Path
    part: str  # what follows the file's name and `#`; empty: the only image, or the middle slice
    window: Window | None  # of gray values of more than 8 bits; None: the file's own, if it has one

    def __str__(self) -> str:
        return f"{self.file}#{self.part}" if self.part else str(self.file)


ImageSource = Path | str | np.ndarray | EncodedImage | ChosenImage


def open_image(image: ImageSource) -> Image.Image:
    """Open an image as a PIL image in mode RGB; an array is (H, W, 3) uint8.

    Raises:
        UnreadableImage: the file is missing, corrupt, cut off, too large, fully transparent, or has several frames or
            more than 8 bits per channel.
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
    return apply_to_file(image, decoded)


class Header(NamedTuple):
    """What an image file's header says: its size as shown, and whether a photograph is turned for that."""

    width: int
    height: int
    turned: bool = False


def check_header(image: ImageSource, *, inside_tables: bool = False) -> Header | None:
    """Refuse a file whose header shows that `open_image` refuses it; its pixels are not checked.

    Files inside tables are only read with `inside_tables`; otherwise None is returned for them.
    """
    if isinstance(image, ChosenImage):
        from fedpeft.data.chosen_image import check_chosen

        return check_chosen(image)
    if isinstance(image, np.ndarray):
        return Header(image.shape[1], image.shape[0])
    return apply_to_file(image, check_form) if inside_tables or not isinstance(image, EncodedImage) else None


def as_array(image: ImageSource) -> np.ndarray:
    """Return the image as an (H, W, 3) uint8 array; raises as `open_image`."""
    return np.asarray(open_image(image))


def apply_to_file(image: Path | str | EncodedImage, use: Callable[[Image.Image, str], Result]) -> Result:
    """Open a file, and return what `use` makes of it and its name."""
    try:
        # not opened by Pillow, which would map the pixels of a TIFF into memory and garble turned ones
        with (
            BytesIO(image.read()) if isinstance(image, EncodedImage) else Path(image).open("rb") as content,
            Image.open(content, formats=FORMATS) as opened,
        ):
            return use(opened, str(image))
    except FileNotFoundError as error:
        raise UnreadableImage.of(image, "is missing", "restore the file or remove its rows") from error
    except Image.DecompressionBombError as error:
        raise _too_large(str(image)) from error
    except DataError:
        raise
    except BROKEN as error:
        raise UnreadableImage.of(image, "cannot be decoded", SOUND_COPY) from error


def check_form(opened: Image.Image, name: str, *, one_frame: bool = True, deep: bool = False) -> Header:
    """Check the form of a file, and return what its header says."""
    if opened.width * opened.height > MAX_PIXELS:
        raise _too_large(name)
    if one_frame and opened.format not in ONE_PICTURE and (frames := getattr(opened, "n_frames", 1)) > 1:
        raise UnreadableImage.of(name, f"has {frames} frames", ONE_FRAME)
    if is_signed(opened):
        raise UnreadableImage.of(name, "has signed values, or does not say of how many bits", "save it as PNG")
    if is_deep(opened) and not deep:
        why = f"has more than 8 bits per channel (mode {opened.mode})"
        raise UnreadableImage.of(name, why, EIGHT_BITS)
    if opened.format == "PNG" and not {"exif", "Raw profile type exif"} & set(opened.info):
        opened.info["exif"] = _exif_behind_pixels(opened, name)  # Pillow would decode the whole file for this
    orientation = _orientation(opened)
    aside = orientation in ASIDE and opened.format != "TIFF"  # Pillow gives the size of a TIFF as shown
    return Header(*(opened.size[::-1] if aside else opened.size), turned=orientation in TURNED)


def decoded(opened: Image.Image, name: str, *, one_frame: bool = True) -> Image.Image:
    """Return a file's image, or its current frame, in mode RGB; see `check_form`."""
    check_form(opened, name, one_frame=one_frame)
    return as_rgb(upright(opened), name)


def upright(opened: Image.Image) -> Image.Image:
    """Return an image turned as its orientation says."""
    opened.load()
    return ImageOps.exif_transpose(opened) if _orientation(opened) in TURNED else opened


def is_deep(opened: Image.Image) -> bool:
    """Return whether a file has more than 8 bits per channel, also where Pillow would cut them off."""
    tiles = [(str(tile[0]), tile[3]) for tile in getattr(opened, "tile", ())]
    maxima = [how[-1] for codec, how in tiles if codec.startswith("ppm") and isinstance(how, tuple)]
    cut = any(";16" in str(how) for _, how in tiles) or any(maximum > MAX_OF_8_BITS for maximum in maxima)
    cut = cut or max(_tiff_values(opened, TIFF_BITS), default=8) > 8 or max(jpeg_2000_bits(opened), default=8) > 8
    return cut or opened.mode in ("I", "F") or opened.mode.startswith("I;")


def is_signed(opened: Image.Image) -> bool:
    """Return whether a file has signed values that Pillow reads as, or turns into, unsigned ones."""
    tiff = SIGNED in _tiff_values(opened, TIFF_SAMPLES) and max(_tiff_values(opened, TIFF_BITS), default=8) <= 8
    return tiff or UNKNOWN_BITS in jpeg_2000_bits(opened)


def is_unsigned_32(opened: Image.Image) -> bool:
    """Return whether a TIFF has unsigned values of 32 bits, which Pillow shows as signed ones."""
    wide, formats = _tiff_values(opened, TIFF_BITS) == (32,), _tiff_values(opened, TIFF_SAMPLES)
    return wide and opened.mode == "I" and formats in ((), (UNSIGNED,))


def _tiff_values(opened: Image.Image, tag: int) -> tuple[int, ...]:
    value = getattr(opened, "tag_v2", {}).get(tag, ())
    return value if isinstance(value, tuple) else (value,)


def jpeg_2000_bits(opened: Image.Image) -> tuple[int, ...]:
    """Return the bits of each component of a JPEG 2000 file; `UNKNOWN_BITS` if signed or not declared."""
    if opened.format != "JPEG2000":
        return ()
    assert isinstance(opened, ImageFile.ImageFile)
    assert opened.fp is not None
    place = opened.fp.tell()
    try:
        opened.fp.seek(0)
        content = opened.fp.read(MAX_BOXES)
    finally:
        opened.fp.seek(place)
    start = content.find(CODESTREAM)
    if start < 0:
        return (UNKNOWN_BITS,)
    sizes = content[start + COMPONENTS + 2 :][: 3 * int.from_bytes(content[start + COMPONENTS :][:2])][::3]
    return tuple(UNKNOWN_BITS if size & 0x80 else size + 1 for size in sizes)


def _orientation(image: Image.Image) -> object:
    try:
        return image.getexif().get(ExifTags.Base.Orientation)
    except BROKEN:  # the pixels are sound all the same
        return None


def _exif_behind_pixels(opened: Image.Image, name: str) -> bytes:
    """Return the EXIF that a PNG has after its pixels, which are skipped; empty: it has none."""
    assert isinstance(opened, ImageFile.ImageFile)
    file = opened.fp
    assert file is not None
    place = file.tell()
    try:
        file.seek(len(PNG_BEGIN))
        for _ in range(MAX_CHUNKS):
            if len(head := file.read(PNG_CHUNK.size)) < PNG_CHUNK.size:
                return b""
            length, kind = PNG_CHUNK.unpack(head)
            if kind == b"eXIf":
                return file.read(min(length, MAX_EXIF))
            if kind == b"IEND":
                return b""
            file.seek(length + PNG_CHECK, os.SEEK_CUR)
        raise UnreadableImage.of(name, f"has more than {MAX_CHUNKS:,} chunks", "save it again")
    finally:
        file.seek(place)


def _too_large(name: str) -> UnreadableImage:
    return UnreadableImage.of(name, f"has more than {MAX_PIXELS // 10**6} million pixels", "save a smaller one")


def as_rgb(image: Image.Image, name: str) -> Image.Image:
    """Return an image in mode RGB, with transparent pixels black; refuse a fully transparent one."""
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        colored = image.convert("RGBA")
        if colored.getchannel("A").getextrema()[1] == 0:
            raise UnreadableImage.of(name, "is fully transparent", "save it without its alpha channel")
        black = Image.new("RGBA", colored.size, (0, 0, 0, 255))
        return Image.alpha_composite(black, colored).convert("RGB")
    return image.convert("RGB")

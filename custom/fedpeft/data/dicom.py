# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read one frame of a DICOM file as 8-bit pixels, and from its header only what says how to show them.

Names, ids, dates and everything else about a patient are not parsed, pydicom's warnings are off because they repeat
values, and its errors are replaced by one that only names the file. Deflated files are refused, because they are
inflated as a whole before their header can be read.

A compressed frame that would decode to more than its header says is refused before it is decoded. Decoders take the
size from the compressed data. RLE data have no size: they can grow to 64 times theirs, whatever the header says.
"""

from __future__ import annotations

import functools
import logging
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.core.errors import DataError, UnreadableImage
from fedpeft.data import dicom_grays
from fedpeft.data.dicom_grays import PALETTE, check_bits, colors_of_palette, grays_of, stored_values
from fedpeft.data.images import MAX_PIXELS, SOUND_COPY
from fedpeft.data.settings import Window

RLE_HEADER = struct.Struct("<16I")  # number of segments, their offsets
JPEG, JPEG_2000 = b"\xff\xd8", b"\xff\x4f\xff\x51"
MAX_PADDING = 4096  # bytes
_SIZE = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}  # JPEG's markers of frames, JPEG-LS's too
_BARE = {0x01, *range(0xD0, 0xD9)}  # markers without a length

MAGIC, MAGIC_AT = b"DICM", 128
SUFFIXES = (".dcm", ".dicom", ".ima")
DEFLATED = "1.2.840.10008.1.2.1.99"
GRAYS = ("MONOCHROME1", "MONOCHROME2")
READ = (*dicom_grays.READ, "Rows", "Columns", "SamplesPerPixel", "NumberOfFrames")
COLORS = ("RGB", "YBR_FULL", "YBR_FULL_422")
COLORS_OF_JPEG_2000 = ("YBR_ICT", "YBR_RCT")  # its decoders convert them to RGB


def check_frame(pydicom: Any, file: Path, number: int, header: Any) -> None:
    """Refuse a frame of compressed pixels that does not decode to the size of the header."""
    with file.open("rb") as opened:
        tables = ["ExtendedOffsetTable", "ExtendedOffsetTableLengths"]
        offsets = pydicom.dcmread(opened, stop_before_pixels=True, specific_tags=tables)
        opened.seek(12, 1)  # tag, VR and undefined length of the pixel data
        extended = (offsets.ExtendedOffsetTable, offsets.ExtendedOffsetTableLengths) if len(offsets) else None
        frames = int(header.get("NumberOfFrames") or 1)
        frame = pydicom.encaps.get_frame(opened, number, number_of_frames=frames, extended_offsets=extended)
    if offsets.file_meta.TransferSyntaxUID == pydicom.uid.RLELossless:
        fits = _rle_fits(frame, header)
    else:
        fits = _jpeg_size(frame) == (header.Rows, header.Columns)
    if not fits:
        raise UnreadableImage.of(file, "holds compressed pixels of another size than its header says", SOUND_COPY)


def _rle_fits(frame: bytes, header: Any) -> bool:
    """Return whether each segment decodes to one byte for each pixel, apart from padding by some writers."""
    segments, *starts = RLE_HEADER.unpack_from(frame)
    if segments != header.SamplesPerPixel * (header.BitsAllocated // 8) or segments > len(starts):
        return False
    ends = [*starts[1:segments], len(frame)]
    limit = header.Rows * header.Columns + MAX_PADDING
    return all(_rle_length(frame[start:end], limit) <= limit for start, end in zip(starts, ends, strict=False))


def _rle_length(segment: bytes, limit: int) -> int:
    """Return how many bytes a segment decodes to; beyond `limit`, any larger number."""
    length = position = 0
    while position < len(segment) and length <= limit:
        code = segment[position]
        if code < 128:
            length += min(code + 1, len(segment) - position - 1)
            position += code + 2
        else:  # 128 stands for nothing
            length += 257 - code if code > 128 else 0
            position += 2 if code > 128 else 1
    return length


def _jpeg_size(frame: bytes) -> tuple[int, int] | None:
    """Return rows and columns that JPEG, JPEG-LS or JPEG 2000 data declare; None: it is none of them."""
    if frame[:2] != JPEG:
        begin = frame.find(JPEG_2000)  # after boxes, where it is a whole JP2 file
        if begin < 0:
            return None
        right, bottom, left, top = struct.unpack_from(">4I", frame, begin + 8)
        return bottom - top, right - left
    position = 2
    while position + 9 <= len(frame):
        if frame[position] != 0xFF:
            return None
        marker = frame[position + 1]
        if marker in _SIZE:
            rows, columns = struct.unpack_from(">2H", frame, position + 5)
            return rows, columns
        if marker == 0xFF:  # fills
            position += 1
        else:
            position += 2 if marker in _BARE else 2 + struct.unpack_from(">H", frame, position + 2)[0]
    return None


def is_dicom(file: Path) -> bool:
    """Return whether a file's name or its first bytes are those of DICOM."""
    if file.suffix.lower() in SUFFIXES:
        return True
    try:
        with file.open("rb") as opened:
            opened.seek(MAGIC_AT)
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def dicom_pixels(file: Path, frame: int | None, window: Window | None, *, pixels: bool = True) -> np.ndarray:
    """Return a frame, (H, W) or (H, W, 3), uint8; without `pixels` check the header and return a blank one.

    Frames count from 0; None: the file has only one. `window`, or else that of the file, shows grays of more than 8
    bits.
    """
    pydicom = _pydicom()
    try:
        return _read(pydicom, file, frame, window, pixels)
    except (DataError, MemoryError):
        raise
    except Exception:  # of any kind, and with any part of the file in its text
        raise UnreadableImage.of(file, "cannot be decoded as DICOM", SOUND_COPY) from None


def _read(pydicom: Any, file: Path, frame: int | None, window: Window | None, pixels: bool) -> np.ndarray:
    """Return a frame, or a blank one without `pixels`, after the checks of its header."""
    syntax = pydicom.filereader.read_file_meta_info(file).TransferSyntaxUID
    if syntax == DEFLATED:
        raise UnreadableImage.of(file, "is deflated DICOM", "save it without that compression")
    header = pydicom.dcmread(file, stop_before_pixels=True, specific_tags=list(READ))
    number = _check_form(header, file, frame)
    compressed = syntax.is_compressed and syntax != pydicom.uid.RLELossless
    check_bits(header, file, shifted=not compressed)
    kind = header.PhotometricInterpretation
    if kind in (PALETTE, *GRAYS) and header.SamplesPerPixel != 1:
        raise UnreadableImage.of(file, "has several gray values for a pixel", "save gray values, or 8-bit RGB")
    if kind == PALETTE:
        shown = colors_of_palette(header, file)
    elif kind in GRAYS:
        shown = grays_of(header, number, window, file)
    else:
        _check_colors(pydicom, syntax, header, file)
        shown = np.ascontiguousarray  # pydicom converts them to RGB
    _check_decoder(pydicom, syntax, header, file)
    if not pixels:
        return np.broadcast_to(np.uint8(0), (header.Rows, header.Columns))
    if syntax.is_compressed:
        check_frame(pydicom, file, number, header)
    # pydicom takes the lowest bits, wherever HighBit says that those stored are
    values = pydicom.pixels.pixel_array(file, index=number, correct_unused_bits=compressed)
    return shown(values if compressed else stored_values(values, header))


def _check_form(header: Any, file: Path, frame: int | None) -> int:
    if header.Rows * header.Columns > MAX_PIXELS:
        raise UnreadableImage.of(file, f"has more than {MAX_PIXELS // 10**6} million pixels", "save a smaller one")
    frames = int(header.get("NumberOfFrames") or 1)
    if frame is None and frames > 1:
        raise UnreadableImage.of(file, f"has {frames} frames", f"name one of #0 to #{frames - 1} behind the file")
    if frame is not None and frame >= frames:
        raise UnreadableImage.of(file, f"has no frame {frame}", f"name one of #0 to #{frames - 1}")
    return frame or 0


def _check_colors(pydicom: Any, syntax: Any, header: Any, file: Path) -> None:
    known = COLORS + COLORS_OF_JPEG_2000 * (syntax in pydicom.uid.JPEG2000TransferSyntaxes)
    bits = (header.BitsAllocated, header.BitsStored, header.PixelRepresentation)
    if header.PhotometricInterpretation not in known or header.SamplesPerPixel != 3 or bits != (8, 8, 0):
        raise UnreadableImage.of(file, "has colors of a kind that is not read", "save gray values, or 8-bit RGB")


def _check_decoder(pydicom: Any, syntax: Any, header: Any, file: Path) -> None:
    """Refuse a compression without decoder on this machine, and a file that is far larger than its pixels need."""
    if not syntax.is_compressed:
        return
    size = header.Rows * header.Columns * header.SamplesPerPixel * (header.BitsAllocated // 8)
    if file.stat().st_size > 2 * size * int(header.get("NumberOfFrames") or 1) + 2**24:
        raise UnreadableImage.of(file, "holds more than its pixels need", SOUND_COPY)
    try:
        available = pydicom.pixels.get_decoder(syntax).is_available
    except NotImplementedError:
        available = False
    if not available:
        raise UnreadableImage.of(
            file, f"is compressed as {syntax.name}, which no installed package decodes", "pip install python-gdcm"
        )


@functools.cache
def _pydicom() -> Any:
    try:
        import pydicom
        import pydicom.encaps
        import pydicom.pixels
    except ImportError as error:
        raise DataError(
            "DICOM images need pydicom, which is not installed: pip install 'flare-fedpeft[medical]'."
        ) from error
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    logging.getLogger("pydicom").disabled = True
    warnings.filterwarnings("ignore", module="pydicom")
    return pydicom

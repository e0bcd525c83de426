# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Refuse a compressed DICOM frame that decodes to more than its header says, before anything decodes it.

Decoders take the size from the compressed data. RLE has none there: it grows to 64 times its size, whatever the header
says.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from fedpeft.data.errors import UnreadableImage
from fedpeft.data.images import SOUND_COPY

RLE_HEADER = struct.Struct("<16I")  # number of segments, their offsets
JPEG, JPEG_2000 = b"\xff\xd8", b"\xff\x4f\xff\x51"
MOST_PADDING = 4096  # bytes
_SIZE = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}  # JPEG's markers of frames, JPEG-LS's too
_BARE = {0x01, *range(0xD0, 0xD9)}  # markers without a length


def check_frame(pydicom: Any, file: Path, number: int, header: Any) -> None:
    """Refuse a frame of compressed pixels that does not decode to the size of the header.

    Args:
        pydicom: the module.
        file: the file.
        number: of the frame, counted from 0.
        header: with Rows, Columns, SamplesPerPixel, BitsAllocated, NumberOfFrames.

    Raises:
        UnreadableImage: the frame decodes to more or less, as far as that can be seen without decoding.
    """
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
    """Return whether each segment decodes to one byte for each pixel, but for what some writers pad it with."""
    segments, *starts = RLE_HEADER.unpack_from(frame)
    if segments != header.SamplesPerPixel * (header.BitsAllocated // 8) or segments > len(starts):
        return False
    ends = [*starts[1:segments], len(frame)]
    most = header.Rows * header.Columns + MOST_PADDING
    return all(_rle_length(frame[start:end], most) <= most for start, end in zip(starts, ends, strict=False))


def _rle_length(segment: bytes, most: int) -> int:
    """Return how many bytes a segment decodes to; where it is more than `most`, any number above that."""
    length = position = 0
    while position < len(segment) and length <= most:
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
        begin = frame.find(JPEG_2000)  # behind boxes, where a whole JP2 file was put in
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

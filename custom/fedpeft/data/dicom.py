# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One frame of a DICOM file as 8-bit pixels; of its header only what says how to show them is read.

Names, ids, dates and whatever else is about a patient are not parsed, pydicom's warnings are off because they repeat
values, and an error that it raises is replaced by one that names the file alone. Deflated files are refused, because
they are inflated whole before anything of them is known.
"""

from __future__ import annotations

import functools
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.data.dicom_frames import check_frame
from fedpeft.data.errors import DataError, UnreadableImage
from fedpeft.data.images import MOST_PIXELS, SOUND_COPY
from fedpeft.data.window import Window

MAGIC, MAGIC_AT = b"DICM", 128
SUFFIXES = (".dcm", ".dicom", ".ima")
DEFLATED = "1.2.840.10008.1.2.1.99"
EIGHT = 8
READ = (
    "Rows",
    "Columns",
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "BitsAllocated",
    "BitsStored",
    "NumberOfFrames",
    "RescaleSlope",
    "RescaleIntercept",
    "WindowCenter",
    "WindowWidth",
    "VOILUTFunction",
    "ModalityLUTSequence",
    "SharedFunctionalGroupsSequence",
    "PerFrameFunctionalGroupsSequence",
)
RESCALES = (("RescaleSlope", 1.0), ("RescaleIntercept", 0.0))
GROUPS = {
    "RescaleSlope": "PixelValueTransformationSequence",
    "RescaleIntercept": "PixelValueTransformationSequence",
    "WindowCenter": "FrameVOILUTSequence",
    "WindowWidth": "FrameVOILUTSequence",
    "VOILUTFunction": "FrameVOILUTSequence",
}
OWN_WINDOWS = {"LINEAR": (0.5, 1.0), "LINEAR_EXACT": (0.0, 0.0)}  # what is taken from center and width, PS3.3 C.11.2.1
NO_WINDOW = "has more than 8 bits per pixel and no window of its own"
SET_WINDOW = "set data.window (a hospital in its own file)"


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


def dicom_pixels(file: Path, frame: int | None, window: Window | None, *, pixels: bool = True) -> np.ndarray | None:
    """Return a frame, (H, W) or (H, W, 3), uint8.

    Args:
        file: the file.
        frame: counted from 0; None: there is one alone.
        window: for gray values of more than 8 bits; None: that of the file.
        pixels: False: check what the header says alone, and return None.

    Raises:
        DataError: pydicom is not installed.
        UnreadableImage: the file is none, has no such frame, no window, or pixels of a kind that is not read.
    """
    pydicom = _pydicom()
    try:
        return _read(pydicom, file, frame, window, pixels)
    except (DataError, MemoryError):
        raise
    except Exception:  # of any kind, and with any part of the file in its text
        raise UnreadableImage.of(file, "cannot be decoded as DICOM", SOUND_COPY) from None


def _read(pydicom: Any, file: Path, frame: int | None, window: Window | None, pixels: bool) -> np.ndarray | None:
    syntax = pydicom.filereader.read_file_meta_info(file).TransferSyntaxUID
    if syntax == DEFLATED:
        raise UnreadableImage.of(file, "is deflated DICOM", "save it without that compression")
    header = pydicom.dcmread(file, stop_before_pixels=True, specific_tags=list(READ))
    number = _check_form(header, file, frame)
    colors = header.SamplesPerPixel == 3
    shown = None if colors else _window(header, file, number, window)
    _check_decoder(pydicom, syntax, header, file)
    if not pixels:
        return None
    if syntax.is_compressed:
        check_frame(pydicom, file, number, header)
    values = pydicom.pixels.pixel_array(file, index=number)
    if colors:
        return np.ascontiguousarray(values, np.uint8)
    slope, intercept = (float(_of_frame(header, number, name, usual)) for name, usual in RESCALES)
    scaled = values * slope + intercept if (slope, intercept) != (1.0, 0.0) else values
    grays = shown.grays(scaled) if shown else Window(0, 2**header.BitsStored - 1).grays(values)
    return 255 - grays if header.PhotometricInterpretation == "MONOCHROME1" else grays


def _of_frame(header: Any, frame: int, name: str, usual: Any) -> Any:
    """Return a value of one frame: its own, that of all frames, or that of the file."""
    groups = [
        *list(header.get("PerFrameFunctionalGroupsSequence", ()))[frame : frame + 1],
        *list(header.get("SharedFunctionalGroupsSequence", ()))[:1],
    ]
    for group in groups:
        for item in group.get(GROUPS[name], ()):
            if item.get(name) is not None:
                return item.get(name)
    found = header.get(name)
    return usual if found is None else found


def _check_form(header: Any, file: Path, frame: int | None) -> int:
    if header.Rows * header.Columns > MOST_PIXELS:
        raise UnreadableImage.of(file, f"has more than {MOST_PIXELS // 10**6} million pixels", "save a smaller one")
    kind, samples = header.PhotometricInterpretation, header.SamplesPerPixel
    gray = samples == 1 and kind in ("MONOCHROME1", "MONOCHROME2")
    color = samples == 3 and header.BitsAllocated == EIGHT and kind.startswith(("RGB", "YBR"))
    if not (gray or color) or "ModalityLUTSequence" in header:
        raise UnreadableImage.of(file, "has colors or values in a table of its own", "save gray values, or 8-bit RGB")
    frames = int(header.get("NumberOfFrames") or 1)
    if frame is None and frames > 1:
        raise UnreadableImage.of(file, f"has {frames} frames", f"name one of #0 to #{frames - 1} behind the file")
    if frame is not None and frame >= frames:
        raise UnreadableImage.of(file, f"has no frame {frame}", f"name one of #0 to #{frames - 1}")
    return frame or 0


def _window(header: Any, file: Path, frame: int, window: Window | None) -> Window | None:
    """Return the window of a gray image; None: it has 8 bits and none of its own."""
    deep = header.BitsStored > EIGHT or header.BitsAllocated > 2 * EIGHT
    if deep and window:
        return window
    center, width = (_first(_of_frame(header, frame, name, None)) for name in ("WindowCenter", "WindowWidth"))
    function = _of_frame(header, frame, "VOILUTFunction", "LINEAR") or "LINEAR"
    if center is None or width is None or function not in OWN_WINDOWS:
        if deep:
            raise UnreadableImage.of(file, NO_WINDOW, SET_WINDOW)
        return None
    less_center, less_width = OWN_WINDOWS[function]
    center, width = center - less_center, max(width - less_width, 0.0)
    return Window(center - width / 2, center + width / 2)


def _first(value: Any) -> float | None:
    if value is None or value == "":
        return None
    return float(value if isinstance(value, int | float | str) else value[0])


def _check_decoder(pydicom: Any, syntax: Any, header: Any, file: Path) -> None:
    """Refuse what this machine has no decoder for, and a file that holds far more than its pixels can need."""
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

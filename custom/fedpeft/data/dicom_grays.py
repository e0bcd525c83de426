# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""How the stored values of a DICOM frame become the grays and colors that its owner's viewer shows.

    stored values -> modality: table, or slope and intercept -> VOI: window of the site, table, or window of the file
    -> grays, inverted where the file says so (DICOM PS3.4 N.2, PS3.3 C.11)
    stored values -> tables of a palette -> colors (PS3.3 C.7.6.3.1.5)

pydicom's functions do the same, but return values of any range. Its tables are not used: with more entries than an
entry has values, such as 4,096 entries of 8 bits, it looks up wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.core.errors import UnreadableImage
from fedpeft.data.settings import Window

EIGHT, SIXTEEN = 8, 16
WHITE = 255
MODALITY, VOI, FRAME_VOI = "ModalityLUTSequence", "VOILUTSequence", "FrameVOILUTSequence"
TRANSFORMATION = "PixelValueTransformationSequence"
GROUPS = {
    "RescaleSlope": TRANSFORMATION,
    "RescaleIntercept": TRANSFORMATION,
    "WindowCenter": FRAME_VOI,
    "WindowWidth": FRAME_VOI,
    "VOILUTFunction": FRAME_VOI,
}
PALETTE = "PALETTE COLOR"
PALETTES = {color: f"{color}PaletteColorLookupTable" for color in ("Red", "Green", "Blue")}
PADDING = ("PixelPaddingValue", "PixelPaddingRangeLimit")
READ = (
    *(*GROUPS, MODALITY, VOI, "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PhotometricInterpretation"),
    *("PixelPresentation", "PresentationLUTShape", "PresentationLUTSequence", *PADDING),
    *(f"{name}{part}" for name in PALETTES.values() for part in ("Descriptor", "Data")),
    "AlphaPaletteColorLookupTableData",
)
LINEAR, EXACT, SIGMOID = "LINEAR", "LINEAR_EXACT", "SIGMOID"
MIN_WIDTH = {LINEAR: 1.0, EXACT: 0.0, SIGMOID: 0.0}  # PS3.3 C.11.2.1; a width of 0 is no window
NO_WINDOW = "has more than 8 bits per pixel and no window of its own"
SET_WINDOW = "set data.window (a hospital in its site policy)"
SAVE_GRAYS = "save it with 8 bits, as its viewer shows it"

Shown = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Table:
    """A lookup table: the first entry for all values up to `first`, the last one for all beyond the table."""

    entries: np.ndarray  # (N,), unsigned
    first: int  # the value of the first entry
    bits: int  # of an entry

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the entries of values (...)."""
        places = np.trunc(np.asarray(values, np.float64) - self.first)
        return self.entries[np.clip(places, 0, len(self.entries) - 1).astype(np.int64)]

    def grays(self, values: np.ndarray) -> np.ndarray:
        """Return the entries of values (...) as uint8 (...)."""
        return Window(0, 2**self.bits - 1).grays(self(values))


def check_bits(header: Any, file: Path, *, shifted: bool) -> None:
    """Refuse a header whose bits of a pixel contradict each other."""
    allocated, stored, high = header.BitsAllocated, header.BitsStored, _high_bit(header)
    if not (0 < stored <= high + 1 <= allocated) or (high + 1 > stored and not shifted):
        why = f"says that {stored} of {allocated} bits end at bit {high}"
        raise UnreadableImage.of(file, why, "save it with HighBit one below BitsStored")


def stored_values(values: np.ndarray, header: Any) -> np.ndarray:
    """Return integers (...) with only the stored bits, signed or not; the others may hold overlays."""
    allocated = header.BitsAllocated
    if allocated < EIGHT:  # unpacked to bytes
        return values
    return (values << (allocated - 1 - _high_bit(header))) >> (allocated - header.BitsStored)


def grays_of(header: Any, frame: int, window: Window | None, file: Path) -> Shown:
    """Return the function from stored values (H, W) of a frame, counted from 0, to grays (H, W), uint8.

    For values of more than 8 bits `window` replaces the file's own window or table.
    """
    shape = str(header.get("PresentationLUTShape") or "IDENTITY").strip().upper()
    if shape not in ("IDENTITY", "INVERSE") or "PresentationLUTSequence" in header:
        raise UnreadableImage.of(file, "has a presentation table or shape that is not read", SAVE_GRAYS)
    if str(header.get("PixelPresentation") or "").strip().upper() in ("COLOR", "MIXED"):
        raise UnreadableImage.of(file, "has grays and colors in one image", "save it as 8-bit RGB")
    scaled, whole, bits = _modality(header, frame, file)
    shown = _voi(header, frame, window, file, whole, bits)
    inverted = header.PhotometricInterpretation == "MONOCHROME1" or shape == "INVERSE"  # the first requires the second
    by_share = bits > EIGHT and window is not None and window.percentiles

    def gray(values: np.ndarray) -> np.ndarray:
        padding, found = _padding(header, values), scaled(values)
        if by_share:  # percentiles of the image without its padding
            found = np.where(padding, np.nan, found)
        grays = WHITE - shown(found) if inverted else shown(found)
        return np.where(padding, np.uint8(0), grays)

    return gray


def _padding(header: Any, values: np.ndarray) -> np.ndarray:
    """Return which stored values (H, W) are padding, which is shown black (DICOM, C.7.5.1.1.2)."""
    ends = [header.get(name) for name in PADDING]
    if not isinstance(ends[0], int):
        return np.zeros(values.shape, bool)
    # some programs write a signed value as an unsigned one
    span = 2**header.BitsAllocated if header.PixelRepresentation else 0
    signed = [end - span if end >= span / 2 > 0 else end for end in ends if isinstance(end, int)]
    low, high = min(signed), max(signed)
    return (values >= low) & (values <= high)


def colors_of_palette(header: Any, file: Path) -> Shown:
    """Return the function from stored values (H, W) of an image with a palette to colors (H, W, 3), uint8."""
    if "AlphaPaletteColorLookupTableData" in header or not all(f"{name}Data" in header for name in PALETTES.values()):
        raise UnreadableImage.of(
            file, "has a palette in segments, with transparency, or incomplete", "save it as 8-bit RGB"
        )
    signed = bool(header.PixelRepresentation)
    tables = [_table(header, header, file, name=name, negative=signed) for name in PALETTES.values()]
    return lambda values: np.stack([table.grays(values) for table in tables], axis=-1)


def _modality(header: Any, frame: int, file: Path) -> tuple[Shown, Window, int]:
    """Return the function from stored values to those that windows refer to, their whole range, and their bits."""
    if items := header.get(MODALITY):
        table = _table(header, items[0], file, negative=bool(header.PixelRepresentation))
        return table, Window(0, 2**table.bits - 1), table.bits
    slope = float(_frame_value(header, frame, "RescaleSlope", 1))
    intercept = float(_frame_value(header, frame, "RescaleIntercept", 0))
    if not (np.isfinite([slope, intercept]).all() and slope):
        raise UnreadableImage.of(file, f"has a rescale slope of {slope:g}", "save it with the right one")
    bits = header.BitsStored
    least = -(2 ** (bits - 1)) if header.PixelRepresentation else 0
    low, high = sorted(value * slope + intercept for value in (least, least + 2**bits - 1))
    plain = (slope, intercept) == (1, 0)
    return (lambda values: values if plain else values * slope + intercept), Window(low, high), bits


def _voi(header: Any, frame: int, window: Window | None, file: Path, whole: Window, bits: int) -> Shown:
    """Return the function from values to grays; `whole` is the range of 8-bit values without a window."""
    deep = bits > EIGHT
    if deep and window:
        return window.grays
    for item in (header.get(VOI) or ())[:1]:
        if item.get("LUTDescriptor") is not None and item.get("LUTData") is not None:  # else the window, as pydicom
            return _table(header, item, file, negative=whole.low < 0).grays
    center, width = (_first(_frame_value(header, frame, name, None)) for name in ("WindowCenter", "WindowWidth"))
    function = str(_frame_value(header, frame, "VOILUTFunction", LINEAR) or LINEAR).strip().upper()
    if function not in MIN_WIDTH:
        raise UnreadableImage.of(file, "has a window of a function that is not known", SAVE_GRAYS)
    least = MIN_WIDTH[function]
    if center is None or width is None or not width > 0 or width < least:
        if deep:
            raise UnreadableImage.of(file, NO_WINDOW, SET_WINDOW)
        return whole.grays
    if function == SIGMOID:
        return lambda values: _sigmoid(values, center, width)
    if function == LINEAR:
        center, width = center - 0.5, width - 1
    return Window(center - width / 2, center + width / 2).grays


def _sigmoid(values: np.ndarray, center: float, width: float) -> np.ndarray:
    exponent = np.clip(-4 * (np.asarray(values, np.float64) - center) / width, -700, 700)
    return np.round(WHITE / (1 + np.exp(exponent))).astype(np.uint8)


def _frame_value(header: Any, frame: int, name: str, default: Any) -> Any:
    """Return a value of one frame: its own, that of all frames, or that of the file."""
    groups = [
        *list(header.get("PerFrameFunctionalGroupsSequence") or ())[frame : frame + 1],
        *list(header.get("SharedFunctionalGroupsSequence") or ())[:1],
    ]
    for group in groups:
        for item in group.get(GROUPS[name]) or ():
            if item.get(name) is not None:
                return item.get(name)
    found = header.get(name)
    return default if found is None else found


def _first(value: Any) -> float | None:
    if value is None or value == "":
        return None
    number = float(value if isinstance(value, int | float | str) else value[0])
    return number if np.isfinite(number) else None


def _high_bit(header: Any) -> int:
    high = header.get("HighBit")
    return header.BitsStored - 1 if high is None else high


def _table(header: Any, item: Any, file: Path, *, name: str = "LUT", negative: bool) -> Table:
    """Return a lookup table of a header or an item of it; entries may be bytes or words, in numbers or as in the file.

    With `negative` a first value of more than 15 bits is below 0.
    """
    count, first, bits = (int(number) for number in item[f"{name}Descriptor"].value)
    count = count % 2**SIXTEEN or 2**SIXTEEN
    if first >= 2 ** (SIXTEEN - 1) and negative:
        first -= 2**SIXTEEN
    content = item[f"{name}Data"].value
    if isinstance(content, bytes):
        if not header.file_meta.TransferSyntaxUID.is_little_endian:
            content = np.frombuffer(content, np.uint16).byteswap().tobytes()
        entries = np.frombuffer(content, np.uint8 if len(content) < 2 * count else "<u2")
        bits = min(bits, EIGHT * entries.itemsize)
    else:
        entries = np.asarray(content).reshape(-1)
    entries = entries[:count]
    if not EIGHT <= bits <= SIXTEEN or len(entries) < count or entries.max() >= 2**bits:
        raise UnreadableImage.of(file, "has a lookup table other than the file says", SAVE_GRAYS)
    return Table(entries, first, bits)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""One slice of a NIfTI volume as 8-bit gray values, as a radiologist sees it: the patient's right on the left.

Only the fixed part of the header is parsed: extensions, which may hold a whole DICOM header, are not, nor are texts. Of
the voxels only the slice is read.
"""

from __future__ import annotations

import functools
import gzip
import logging
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.core.errors import DataError, UnreadableImage
from fedpeft.data.dicom_grays import SET_WINDOW
from fedpeft.data.images import MAX_PIXELS, SOUND_COPY
from fedpeft.data.settings import Window

SUFFIXES = (".nii", ".nii.gz")
PLANES = {"sagittal": 0, "coronal": 1, "axial": 2}  # the axis across the slices, of right, anterior, superior
MAX_VOXELS = 2**32  # of a volume, which a compressed file is read through up to the slice
_FIRST, _SECOND = 348, 540  # bytes of the headers of NIfTI-1 and NIfTI-2


def is_nifti(file: Path) -> bool:
    """Return whether a file's name is that of a NIfTI volume."""
    return file.name.lower().endswith(SUFFIXES)


def nifti_pixels(
    file: Path, plane: str, number: int | None, window: Window | None, *, pixels: bool = True
) -> np.ndarray:
    """Return a slice, (H, W) uint8.

    Args:
        file: the volume.
        plane: sagittal, coronal or axial.
        number: of the slice, counted from 0 from left, posterior or inferior; None: the middle one.
        window: of values of more than 8 bits; None: the file's own (cal_min and cal_max).
        pixels: False: check what the header says alone, and return a blank slice.
    """
    nibabel = _nibabel()
    try:
        return _read(nibabel, file, PLANES[plane], number, window, pixels)
    except (DataError, MemoryError):
        raise
    except Exception:  # of any kind, and with any part of the file in its text
        raise UnreadableImage.of(file, "cannot be decoded as NIfTI", SOUND_COPY) from None


def _read(nibabel: Any, file: Path, axis: int, number: int | None, window: Window | None, pixels: bool) -> np.ndarray:
    header = _header(nibabel, file)
    shape = header.get_data_shape()
    if len(shape) < 3 or max(shape[3:], default=1) > 1:
        raise UnreadableImage.of(file, f"has {len(shape)} dimensions", "save one volume of three")
    if np.prod(shape, dtype=float) > MAX_VOXELS:
        raise UnreadableImage.of(file, f"has more than {MAX_VOXELS // 10**9} billion voxels", "save a smaller one")
    kind = header.get_data_dtype()
    if kind.fields or kind.kind not in "iuf":
        raise UnreadableImage.of(file, "has colors or complex numbers", "save gray values")
    orientation = nibabel.io_orientation(header.get_best_affine())  # row: an axis of the file; its axis here, direction
    if np.isnan(orientation).any():
        raise UnreadableImage.of(file, "does not say how its axes lie", "save it with an affine")
    own = int(np.flatnonzero(orientation[:, 0] == axis)[0])
    count = shape[own]
    others = [length for place, length in enumerate(shape[:3]) if place != own]
    if others[0] * others[1] > MAX_PIXELS:
        raise UnreadableImage.of(file, f"has more than {MAX_PIXELS // 10**6} million pixels", "save a smaller one")
    number = count // 2 if number is None else number
    if number >= count:
        raise UnreadableImage.of(file, f"has no slice {number}", f"name one of 0 to {count - 1}")
    shown = _window(header, kind, file, window)
    if not pixels:
        return _as_seen(np.broadcast_to(np.uint8(0), others), orientation, own)
    place = number if orientation[own, 1] > 0 else count - 1 - number
    index = [slice(None)] * 3 + [0] * (len(shape) - 3)
    index[own] = place
    plane = np.asanyarray(nibabel.arrayproxy.ArrayProxy(file, header, mmap=False)[tuple(index)])
    return shown.grays(_as_seen(plane, orientation, own))


def _as_seen(plane: np.ndarray, orientation: np.ndarray, across: int) -> np.ndarray:
    """Return a slice (its two axes in the file's order) with rows from anterior or superior, columns from the right.

    Sagittal slices have anterior on the left.
    """
    rest = [tuple(orientation[axis]) for axis in range(3) if axis != across]
    if rest[0][0] > rest[1][0]:
        plane, rest = plane.T, rest[::-1]
    for place, (_, direction) in enumerate(rest):
        if direction > 0:  # to the right, anterior, superior: each is shown from that end
            plane = np.flip(plane, place)
    return plane.T


def _window(header: Any, kind: np.dtype, file: Path, window: Window | None) -> Window:
    slope, intercept = header.get_slope_inter()
    if kind == np.uint8 and slope in (None, 1.0) and intercept in (None, 0.0):
        return Window(0, 255)
    low, high = float(header["cal_min"]), float(header["cal_max"])
    if window is None and not (np.isfinite([low, high]).all() and high > low):
        raise UnreadableImage.of(file, "has more than 8 bits per voxel and no window of its own", SET_WINDOW)
    return window or Window(low, high)


def _header(nibabel: Any, file: Path) -> Any:
    try:
        with (gzip.open if file.name.lower().endswith(".gz") else open)(file, "rb") as opened:
            block = opened.read(_SECOND)
    except (OSError, EOFError, zlib.error) as error:
        why, remedy = ("is missing", "restore the file") if isinstance(error, FileNotFoundError) else (None, None)
        raise UnreadableImage.of(file, why or "cannot be decoded as NIfTI", remedy or SOUND_COPY) from error
    second = int.from_bytes(block[:4], "little") == _SECOND or int.from_bytes(block[:4], "big") == _SECOND
    kind = nibabel.Nifti2Header if second else nibabel.Nifti1Header
    return kind(block[: _SECOND if second else _FIRST])


@functools.cache
def _nibabel() -> Any:
    try:
        import nibabel
    except ImportError as error:
        raise DataError(
            "NIfTI images need nibabel, which is not installed: pip install 'flare-fedpeft[medical]'."
        ) from error
    logging.getLogger("nibabel").disabled = True
    logging.getLogger("nibabel.global").disabled = True
    return nibabel

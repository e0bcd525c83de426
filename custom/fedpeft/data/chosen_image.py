# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Images that need a choice: a frame or slice of a file, or a window of its range of values.

scans/7.tif#2                  the third frame of a TIFF, GIF, PNG or WebP file, counted from 0
scans/cine.dcm#12              a frame of a DICOM file
scans/brain.nii.gz             the middle axial slice of a NIfTI volume
scans/brain.nii.gz#40          the slice 40 from below
scans/knee.nii.gz#sagittal     the middle sagittal slice; #sagittal-12, #coronal-30

A slice of a NIfTI volume is shown as a radiologist sees it: the patient's right on the left. Only the fixed part of its
header is parsed, not texts or extensions, which may hold a whole DICOM header. If the slice's voxels lie
together in the file, little else is read; otherwise up to the whole volume, whose size is limited.
"""

from __future__ import annotations

import functools
import gzip
import logging
import os
import re
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from fedpeft.core.errors import DataError, UnreadableImage
from fedpeft.data.answers import clean_text
from fedpeft.data.dicom import dicom_pixels, is_dicom
from fedpeft.data.dicom_grays import NO_WINDOW, SET_WINDOW
from fedpeft.data.folders import IMAGE_SUFFIXES, image_file
from fedpeft.data.images import (
    MAX_PIXELS,
    SOUND_COPY,
    ChosenImage,
    Header,
    apply_to_file,
    as_rgb,
    check_form,
    is_deep,
    is_unsigned_32,
    jpeg_2000_bits,
    upright,
)
from fedpeft.data.settings import Window

SUFFIXES = (".nii", ".nii.gz")
PLANES = {"sagittal": 0, "coronal": 1, "axial": 2}  # the axis across the slices, of right, anterior, superior
MAX_GRAY = 65_535  # Pillow scales the grays of a PGM to this
MAX_VOXELS = 2**32  # of a volume: a compressed file is read from its beginning up to the slice
MAX_BYTES = 2**31  # of a volume whose slices do not lie together in the file: nibabel may read all of it
_FIRST, _SECOND = 348, 540  # bytes of the headers of NIfTI-1 and NIfTI-2

AXIAL = "axial"
SCALED = "has a largest gray below 65,535, to which Pillow scales, or signed ones"
TIFF_INTERPRETATION = 262  # the tag PhotometricInterpretation
_PART = re.compile(rf"(?:({'|'.join(PLANES)})(?:-([0-9]{{1,6}}))?|([0-9]{{1,6}}))")


def is_nifti(file: Path) -> bool:
    """Return whether a file's name is that of a NIfTI volume."""
    return file.name.lower().endswith(SUFFIXES)


def nifti_pixels(
    file: Path, plane: str, number: int | None, window: Window | None, *, pixels: bool = True
) -> np.ndarray:
    """Return a sagittal, coronal or axial slice, (H, W) uint8; without `pixels` check the header, return a blank one.

    Slices count from 0 from left, posterior or inferior; None: the middle one. Without `window`, that of the file
    (cal_min and cal_max) shows values of more than 8 bits.
    """
    nibabel = _nibabel()
    try:
        return _read(nibabel, file, PLANES[plane], number, window, pixels)
    except (DataError, MemoryError):
        raise
    except Exception:  # of any kind, and with any part of the file in its text
        raise UnreadableImage.of(file, "cannot be decoded as NIfTI", SOUND_COPY) from None


def _read(nibabel: Any, file: Path, axis: int, number: int | None, window: Window | None, pixels: bool) -> np.ndarray:
    """Return a slice of a volume, or a blank one without `pixels`, after the checks of its header."""
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
    codes = [int(header[name]) for name in ("sform_code", "qform_code")]
    if np.isnan(orientation).any() or not any(codes):  # nibabel would guess
        raise UnreadableImage.of(file, "does not say how its axes lie", "save it with an affine")
    own = int(np.flatnonzero(orientation[:, 0] == axis)[0])
    if own < 2 and np.prod(shape, dtype=float) * kind.itemsize > MAX_BYTES:
        whole = next(name for name, one in PLANES.items() if one == orientation[2, 0])
        raise UnreadableImage.of(file, f"has more than {MAX_BYTES >> 30} GiB", f"name its {whole} slices (#{whole})")
    count = shape[own]
    others = [length for place, length in enumerate(shape[:3]) if place != own]
    if others[0] * others[1] > MAX_PIXELS:
        raise UnreadableImage.of(file, f"has more than {MAX_PIXELS // 10**6} million pixels", "save a smaller one")
    number = count // 2 if number is None else number
    if number >= count:
        raise UnreadableImage.of(file, f"has no slice {number}", f"name one of 0 to {count - 1}")
    shown = _nifti_window(header, kind, file, window)
    if not pixels:
        return _orient(np.broadcast_to(np.uint8(0), others), orientation, own)
    place = number if orientation[own, 1] > 0 else count - 1 - number
    index = [slice(None)] * 3 + [0] * (len(shape) - 3)
    index[own] = place
    plane = np.asanyarray(nibabel.arrayproxy.ArrayProxy(file, header, mmap=False)[tuple(index)])
    return shown.grays(_orient(plane, orientation, own))


def _orient(plane: np.ndarray, orientation: np.ndarray, across: int) -> np.ndarray:
    """Turn a slice (its two axes in the file's order) so that rows start at anterior or superior, columns at the right.

    Sagittal slices have anterior on the left.
    """
    rest = [tuple(orientation[axis]) for axis in range(3) if axis != across]
    if rest[0][0] > rest[1][0]:
        plane, rest = plane.T, rest[::-1]
    for place, (_, direction) in enumerate(rest):
        if direction > 0:  # to the right, anterior, superior: each is shown from that end
            plane = np.flip(plane, place)
    return plane.T


def _nifti_window(header: Any, kind: np.dtype, file: Path, window: Window | None) -> Window:
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


def image_of(root: Path, name: str, window: Window | None, *, where: str) -> tuple[Path | ChosenImage, str]:
    """Return the image that a table names in a folder, and the name of its file."""
    file, part = name, ""
    if not os.path.isfile(root / name) and "#" in name:
        file, _, part = name.rpartition("#")
    path = image_file(root, file, where=where)
    plain = path.suffix.lower() in IMAGE_SUFFIXES or not (is_nifti(path) or is_dicom(path))
    return (path if plain and not part and window is None else ChosenImage(path, part, window)), file


def image_name(name: str, file: str) -> str:
    """Return the one name of an image of a file: an only frame has no number, and slices are axial by default."""
    part = name.removeprefix(file).removeprefix("#")
    if not (found := _PART.fullmatch(part)):
        return name if part else file
    plane, number = found[1] or "", found[2] or found[3] or ""
    number = number and str(int(number))
    if is_nifti(Path(file)):
        plane = "" if plane == AXIAL else plane
    elif number == "0":
        number = ""
    part = "-".join(filter(None, (plane, number)))
    return f"{file}#{part}" if part else file


def canonical_id(name: str) -> str:
    """Return the id of the image that a table would name so."""
    name = str(PurePosixPath(clean_text(name).strip().replace("\\", "/")))
    return image_name(name, name.rpartition("#")[0] or name)


def open_chosen(image: ChosenImage) -> Image.Image:
    """Open such an image in mode RGB."""
    if read := _medical(image):
        return Image.fromarray(read()).convert("RGB")
    return apply_to_file(image.file, lambda opened, name: _raster(opened, name, image))


def check_chosen(image: ChosenImage) -> Header:
    """Check the header of such an image, and return what it says."""
    if read := _medical(image):
        height, width = read(pixels=False).shape[:2]
        return Header(width, height)
    return apply_to_file(image.file, lambda opened, name: _checked_raster(opened, name, image))


def _medical(image: ChosenImage) -> Callable[..., Any] | None:
    """Return the function that reads a NIfTI volume or a DICOM file; None: it is an image file."""
    plane, number = _part(image)
    if is_nifti(image.file):
        return partial(nifti_pixels, image.file, plane or AXIAL, number, image.window)
    if plane:
        raise UnreadableImage.of(image, f"has no {plane} slices", "only NIfTI volumes (.nii, .nii.gz) do")
    return partial(dicom_pixels, image.file, number, image.window) if is_dicom(image.file) else None


def _checked_raster(opened: Image.Image, name: str, image: ChosenImage) -> Header:
    """Go to the chosen frame, check its form, and return what its header says."""
    _, number = _part(image)
    if number is not None:
        frames = getattr(opened, "n_frames", 1)
        if number >= frames:
            raise UnreadableImage.of(name, f"has no frame {number}", f"name one of #0 to #{frames - 1}")
        opened.seek(number)
    if is_deep(opened):
        if len(opened.getbands()) > 1:
            raise UnreadableImage.of(name, "has colors of more than 8 bits per channel", "save it with 8 bits")
        if image.window is None:
            raise UnreadableImage.of(name, NO_WINDOW, SET_WINDOW)
        tiles = getattr(opened, "tile", ())
        how = tiles[0][3] if opened.format == "PPM" and tiles else ""
        if isinstance(how, tuple) and how[-1] != MAX_GRAY:
            raise UnreadableImage.of(name, SCALED, "save it as PNG")
        if set(jpeg_2000_bits(opened)) - {16}:
            raise UnreadableImage.of(name, SCALED, "save it as PNG or DICOM")
    return check_form(opened, name, one_frame=number is None, deep=True)


def _raster(opened: Image.Image, name: str, image: ChosenImage) -> Image.Image:
    _checked_raster(opened, name, image)
    deep, inverted, unsigned = is_deep(opened), _white_is_zero(opened), is_unsigned_32(opened)
    raised = upright(opened)
    if deep and image.window:
        values = np.asarray(raised)
        grays = image.window.grays(values.view(np.uint32) if unsigned else values)
        raised = Image.fromarray(255 - grays if inverted else grays)
    return as_rgb(raised, name)


def _white_is_zero(opened: Image.Image) -> bool:
    """Return whether a TIFF's lowest value is white, which Pillow applies only to 8 bits."""
    return getattr(opened, "tag_v2", {}).get(TIFF_INTERPRETATION) == 0


def _part(image: ChosenImage) -> tuple[str, int | None]:
    if not image.part:
        return "", None
    found = _PART.fullmatch(image.part)
    if not found:
        raise UnreadableImage.of(image, "has no such part", "write #N, or #sagittal, #coronal-N for NIfTI volumes")
    number = found[2] or found[3]
    return found[1] or "", None if number is None else int(number)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Images of which a part has to be chosen: a frame or slice of a file, a window of its range.

scans/7.tif#2                  the third frame of a TIFF, GIF, PNG or WebP file, counted from 0
scans/cine.dcm#12              a frame of a DICOM file
scans/brain.nii.gz             the middle axial slice of a NIfTI volume
scans/brain.nii.gz#40          the slice 40 from below
scans/knee.nii.gz#sagittal     the middle sagittal slice; #sagittal-12, #coronal-30
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedpeft.core.errors import UnreadableImage
from fedpeft.data.dicom import dicom_pixels, is_dicom
from fedpeft.data.dicom_grays import NO_WINDOW, SET_WINDOW
from fedpeft.data.folders import IMAGE_SUFFIXES, image_file
from fedpeft.data.images import ChosenImage, Header, as_rgb, checked, is_deep, upright, with_file
from fedpeft.data.nifti import PLANES, is_nifti, nifti_pixels
from fedpeft.data.settings import Window

AXIAL = "axial"
TIFF_INTERPRETATION = 262  # the tag PhotometricInterpretation
_PART = re.compile(rf"(?:({'|'.join(PLANES)})(?:-([0-9]{{1,6}}))?|([0-9]{{1,6}}))")


def image_of(root: Path, name: str, window: Window | None, *, where: str) -> tuple[Path | ChosenImage, str]:
    """Return the image that a table names below a folder, and the name of its file."""
    file, part = name, ""
    if not os.path.isfile(root / name) and "#" in name:
        file, _, part = name.rpartition("#")
    path = image_file(root, file, where=where)
    usual = path.suffix.lower() in IMAGE_SUFFIXES or not (is_nifti(path) or is_dicom(path))
    return (path if usual and not part and window is None else ChosenImage(path, part, window)), file


def open_chosen(image: ChosenImage) -> Image.Image:
    """Open such an image in mode RGB."""
    if read := _medical(image):
        return Image.fromarray(read()).convert("RGB")
    return with_file(image.file, lambda opened, name: _raster(opened, name, image))


def check_chosen(image: ChosenImage) -> Header:
    """Check the header of such an image, and return what it says."""
    if read := _medical(image):
        height, width = read(pixels=False).shape[:2]
        return Header(width, height)
    return with_file(image.file, lambda opened, name: _checked_raster(opened, name, image))


def _medical(image: ChosenImage) -> Callable[..., Any] | None:
    """Return what reads a NIfTI volume or a DICOM file; None: it is a usual image file."""
    plane, number = _part(image)
    if is_nifti(image.file):
        return partial(nifti_pixels, image.file, plane or AXIAL, number, image.window)
    if plane:
        raise UnreadableImage.of(image, f"has no {plane} slices", "only NIfTI volumes (.nii, .nii.gz) do")
    return partial(dicom_pixels, image.file, number, image.window) if is_dicom(image.file) else None


def _checked_raster(opened: Image.Image, name: str, image: ChosenImage) -> Header:
    """Go to the frame that is meant, check its form, and return what its header says."""
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
    return checked(opened, name, one_frame=number is None, deep=True)


def _raster(opened: Image.Image, name: str, image: ChosenImage) -> Image.Image:
    _checked_raster(opened, name, image)
    deep, inverted = is_deep(opened), _white_is_zero(opened)
    raised = upright(opened)
    if deep and image.window:
        grays = image.window.grays(np.asarray(raised))
        raised = Image.fromarray(255 - grays if inverted else grays)
    return as_rgb(raised, name)


def _white_is_zero(opened: Image.Image) -> bool:
    """Return whether a TIFF's lowest value is white, which Pillow applies to 8 bits alone."""
    return getattr(opened, "tag_v2", {}).get(TIFF_INTERPRETATION) == 0


def _part(image: ChosenImage) -> tuple[str, int | None]:
    if not image.part:
        return "", None
    found = _PART.fullmatch(image.part)
    if not found:
        raise UnreadableImage.of(image, "has no such part", "write #N, or #sagittal, #coronal-N for NIfTI volumes")
    number = found[2] or found[3]
    return found[1] or "", None if number is None else int(number)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Images of which a part has to be chosen: a frame or slice of a file, a window of its range.

scans/7.tif#2                  the third frame of a TIFF, GIF, PNG or WebP file, counted from 0
scans/cine.dcm#12              a frame of a DICOM file
scans/brain.nii.gz             the middle axial slice of a NIfTI volume
scans/brain.nii.gz#40          the slice 40 from below
scans/knee.nii.gz#sagittal     the middle sagittal slice; #sagittal-12, #coronal-30
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedpeft.data.dicom import dicom_pixels, is_dicom
from fedpeft.data.dicom_grays import NO_WINDOW, SET_WINDOW
from fedpeft.data.errors import UnreadableImage
from fedpeft.data.folders import IMAGE_SUFFIXES, image_file
from fedpeft.data.images import ChosenImage, as_rgb, decoded, is_deep, with_file
from fedpeft.data.nifti import PLANES, is_nifti, nifti_pixels
from fedpeft.data.window import Window

AXIAL = "axial"
_PART = re.compile(rf"(?:({'|'.join(PLANES)})(?:-([0-9]{{1,6}}))?|([0-9]{{1,6}}))")


def image_of(root: Path, name: str, window: Window | None, *, where: str) -> tuple[Path | ChosenImage, str]:
    """Return the image that a table names below a folder, and the name of its file.

    Args:
        root: the folder.
        name: as `fedpeft.data.folders.inside` returned it.
        window: of the settings.
        where: the row, for errors.

    Raises:
        DataError: there is no such file.
    """
    file, part = name, ""
    if not (root / name).is_file() and "#" in name:
        file, _, part = name.rpartition("#")
    path = image_file(root, file, where=where)
    usual = path.suffix.lower() in IMAGE_SUFFIXES or not (is_nifti(path) or is_dicom(path))
    return (path if usual and not part and window is None else ChosenImage(path, part, window)), file


def open_chosen(image: ChosenImage, *, pixels: bool = True) -> Image.Image | None:
    """Open such an image in mode RGB, or with `pixels` off check its header and return None.

    Raises:
        UnreadableImage: see `fedpeft.data.images.open_image`.
    """
    plane, number = _part(image)
    values: Any
    if is_nifti(image.file):
        values = nifti_pixels(image.file, plane or AXIAL, number, image.window, pixels=pixels)
    elif plane:
        raise UnreadableImage.of(image, f"has no {plane} slices", "only NIfTI volumes (.nii, .nii.gz) do")
    elif is_dicom(image.file):
        values = dicom_pixels(image.file, number, image.window, pixels=pixels)
    else:
        return with_file(image.file, lambda opened, name: _raster(opened, name, number, image.window, pixels))
    return None if values is None else Image.fromarray(values).convert("RGB")


def _raster(
    opened: Image.Image, name: str, number: int | None, window: Window | None, pixels: bool
) -> Image.Image | None:
    if number is not None:
        frames = getattr(opened, "n_frames", 1)
        if number >= frames:
            raise UnreadableImage.of(name, f"has no frame {number}", f"name one of #0 to #{frames - 1}")
        opened.seek(number)
    if not is_deep(opened):
        return decoded(opened, name, one_frame=number is None, pixels=pixels)
    if len(opened.getbands()) > 1:
        raise UnreadableImage.of(name, "has colors of more than 8 bits per channel", "save it with 8 bits")
    if window is None:
        raise UnreadableImage.of(name, NO_WINDOW, SET_WINDOW)
    decoded(opened, name, one_frame=number is None, pixels=False, deep=True)
    return as_rgb(Image.fromarray(window.grays(np.asarray(opened))), name) if pixels else None


def _part(image: ChosenImage) -> tuple[str, int | None]:
    if not image.part:
        return "", None
    found = _PART.fullmatch(image.part)
    if not found:
        raise UnreadableImage.of(image, "has no such part", "write #N, or #sagittal, #coronal-N for NIfTI volumes")
    number = found[2] or found[3]
    return found[1] or "", None if number is None else int(number)

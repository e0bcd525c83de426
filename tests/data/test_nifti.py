# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""NIfTI volumes of a manifest: which slice, how it lies, and through which window."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest

from fedpeft.core.errors import UnreadableImage
from fedpeft.data import DataError, DataSettings, load
from fedpeft.data import chosen_image as nifti_file
from fedpeft.data.chosen_image import image_of
from fedpeft.data.images import as_array, check_header
from fedpeft.data.settings import Window

nibabel = pytest.importorskip("nibabel")
SHAPE = (4, 5, 6)  # to the right, anterior, superior
VOLUME = np.arange(np.prod(SHAPE), dtype=np.int16).reshape(SHAPE)
ALL = Window(0, 255)


def saved(path, volume=VOLUME, *, axes="RAS", first=nibabel.Nifti1Image, **header):
    canonical = nibabel.Nifti1Image(volume, np.eye(4))
    wanted = nibabel.orientations.axcodes2ornt(axes)
    turned = canonical.as_reoriented(nibabel.orientations.ornt_transform(nibabel.io_orientation(np.eye(4)), wanted))
    made = first(np.asarray(turned.dataobj), turned.affine)
    for name, value in header.items():
        made.header[name] = value
    made.to_filename(path)
    return path


def shown(path, part="", window=ALL):
    image = image_of(path.parent, path.name + part, window, where="line 2")[0]
    pixels = as_array(image)[..., 0]
    assert check_header(image)[:2] == pixels.shape[::-1], "the header says the size"
    return pixels


@pytest.mark.parametrize("axes", ["RAS", "LPS", "LAS", "PIR", "SLA", "ASR"])
@pytest.mark.parametrize("suffix", ["nii", "nii.gz"])
def test_a_slice_looks_the_same_however_the_file_lies(tmp_path, axes, suffix):
    path = saved(tmp_path / f"head.{suffix}", axes=axes)
    assert (shown(path) == VOLUME[::-1, ::-1, 3].T).all(), "the middle one from above, patient's right on the left"
    assert (shown(path, "#1") == VOLUME[::-1, ::-1, 1].T).all()
    assert (shown(path, "#axial-5") == VOLUME[::-1, ::-1, 5].T).all()
    assert (shown(path, "#coronal-2") == VOLUME[::-1, 2, ::-1].T).all()
    assert (shown(path, "#sagittal") == VOLUME[2, ::-1, ::-1].T).all()


def test_values_are_rescaled_and_the_files_own_range_is_its_window(tmp_path):
    path = saved(tmp_path / "a.nii", first=nibabel.Nifti2Image, cal_min=10, cal_max=90)
    assert (shown(path, window=None) == Window(10, 90).grays(VOLUME[::-1, ::-1, 3].T)).all()
    made = nibabel.Nifti1Image(VOLUME, np.eye(4))
    made.header.set_slope_inter(0.25, -3)
    made.to_filename(tmp_path / "b.nii")
    values = nibabel.load(tmp_path / "b.nii").get_fdata()
    assert values.max() < VOLUME.max(), "they are rescaled"
    assert (shown(tmp_path / "b.nii", window=Window(0, 20)) == Window(0, 20).grays(values[::-1, ::-1, 3].T)).all()
    assert (shown(saved(tmp_path / "c.nii", VOLUME.astype(np.uint8)), window=None) == VOLUME[::-1, ::-1, 3].T).all()


def _with_dimensions(content: bytes, *lengths: int) -> bytes:
    return content[:40] + struct.pack("<8h", 3, *lengths, 1, 1, 1, 1) + content[56:]


REFUSED = {
    "no window": (saved, "", None, "more than 8 bits per voxel and no window of its own; set data.window"),
    "no such slice": (saved, "#6", ALL, r"has no slice 6; name one of 0 to 5"),
    "no such part": (saved, "#upper", ALL, "has no such part; write #N, or #sagittal"),
    "several volumes": (lambda p: saved(p, np.zeros((3, 3, 3, 2), np.int16)), "", ALL, "has 4 dimensions"),
    "colors": (
        lambda p: saved(p, np.zeros((3, 3, 3), [("R", "u1"), ("G", "u1"), ("B", "u1")])),
        "",
        ALL,
        "has colors or complex numbers",
    ),
    "cut off": (lambda p: saved(p).write_bytes(p.read_bytes()[:360]), "", ALL, "cannot be decoded as NIfTI"),
    "too large": (
        lambda p: p.write_bytes(_with_dimensions(saved(p).read_bytes(), 30_000, 30_000, 2)),
        "",
        ALL,
        "more than 89 million pixels",
    ),
    "no NIfTI": (lambda p: p.write_bytes(b"no volume" * 100), "", ALL, "cannot be decoded as NIfTI"),
    "empty": (lambda p: p.write_bytes(b""), "", ALL, "cannot be decoded as NIfTI"),
}


@pytest.mark.parametrize(("make", "part", "window", "sentence"), REFUSED.values(), ids=list(REFUSED))
def test_what_is_not_read_is_named(tmp_path, make, part, window, sentence):
    make(tmp_path / "scan.nii")
    with pytest.raises(UnreadableImage, match=rf"scan\.nii.* {sentence}"):
        shown(tmp_path / "scan.nii", part, window)


@pytest.mark.parametrize(("axes", "named"), [("RAS", ""), ("SAR", "sagittal"), ("RSA", "coronal")])
def test_a_large_volume_is_read_only_where_a_slice_lies_together(tmp_path, monkeypatch, axes, named):
    path = saved(tmp_path / "head.nii.gz", axes=axes)
    monkeypatch.setattr(nifti_file, "MAX_BYTES", VOLUME.nbytes - 1)
    if named:
        with pytest.raises(UnreadableImage, match=rf"has more than 0 GiB; name its {named} slices \(#{named}\)"):
            shown(path)
        assert shown(path, f"#{named}").any()
    else:
        assert (shown(path) == VOLUME[::-1, ::-1, 3].T).all()


def test_a_file_that_is_no_gzip_is_named(tmp_path):
    (tmp_path / "scan.nii.gz").write_bytes(b"no gzip")
    with pytest.raises(UnreadableImage, match=r"scan\.nii\.gz cannot be decoded as NIfTI"):
        check_header(image_of(tmp_path, "scan.nii.gz", ALL, where="line 2")[0])


def test_an_extension_of_the_header_is_not_parsed(tmp_path):
    made = nibabel.Nifti1Image(VOLUME, np.eye(4))
    made.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"Doe^Jane"))
    made.to_filename(tmp_path / "head.nii")
    assert (shown(tmp_path / "head.nii") == VOLUME[::-1, ::-1, 3].T).all()
    _, header = "", nifti_file._header(nibabel, tmp_path / "head.nii")
    assert len(header.extensions) == 0


def test_without_nibabel_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    saved(tmp_path / "head.nii")
    nifti_file._nibabel.cache_clear()
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(DataError, match=r"NIfTI images need nibabel.*pip install 'flare-fedpeft\[medical\]'"):
        shown(tmp_path / "head.nii")


def test_axes_that_no_code_describes_are_not_guessed(tmp_path):
    content = bytearray(saved(tmp_path / "head.nii").read_bytes())
    content[252:256] = bytes(4)  # the codes of both ways to say it
    path = tmp_path / "unknown.nii"
    path.write_bytes(content)
    with pytest.raises(UnreadableImage, match="does not say how its axes lie"):
        shown(path)


@pytest.mark.parametrize(("patients", "mixed"), [(("P0", "P0"), False), (("P0", ""), True), (("P0", "P1"), True)])
def test_slices_of_a_volume_are_of_one_patient_in_all_rows_or_in_none(tmp_path, patients, mixed):
    rows = ["image,label,patient"]
    for number in range(10):
        saved(tmp_path / f"v{number}.nii")
        rows += [
            f"v{number}.nii#{slice},{'ab'[number % 2]},{p and f'{p}-{number}'}" for slice, p in enumerate(patients)
        ]
    (tmp_path / "manifest.csv").write_text("\n".join(rows))
    settings = DataSettings(dataset="manifest", root=tmp_path, window={"center": 50, "width": 100})
    if not mixed:
        return load(settings)
    with pytest.raises(DataError, match=r"'v0\.nii#1' is in two groups \(patients\)"):
        load(settings)

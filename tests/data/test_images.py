# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every kind of image file becomes 8-bit RGB, or one sentence."""

from __future__ import annotations

import numpy as np
import pytest
from layouts import picture
from PIL import Image

from fedpeft.data import DataError
from fedpeft.data.images import as_array, open_image


def _saved(path, pixels, mode=None):
    Image.fromarray(pixels, mode).save(path) if mode else Image.fromarray(pixels).save(path)
    return path


def test_gray_becomes_three_equal_channels(tmp_path):
    gray = np.arange(20, dtype=np.uint8).reshape(4, 5)
    rgb = as_array(_saved(tmp_path / "gray.png", gray))
    assert rgb.dtype == np.uint8
    assert (rgb == gray[:, :, None]).all()


def test_an_opaque_rgba_file_keeps_its_colors_and_transparent_pixels_turn_black(tmp_path):
    pixels = np.full((2, 2, 4), (10, 20, 30, 255), np.uint8)
    pixels[0, 0, 3] = 0
    rgb = as_array(_saved(tmp_path / "rgba.png", pixels))
    assert rgb[1, 1].tolist() == [10, 20, 30]
    assert rgb[0, 0].tolist() == [0, 0, 0]


def test_a_palette_file_gives_the_colors_not_the_indices(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([200, 100, 50, 1, 2, 3])
    image.putdata([0, 1])
    image.save(tmp_path / "palette.png")
    assert as_array(tmp_path / "palette.png")[0].tolist() == [[200, 100, 50], [1, 2, 3]]


def test_a_palette_with_a_transparent_color_shows_it_black(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([200, 100, 50, 1, 2, 3])
    image.putdata([0, 1])
    image.save(tmp_path / "palette.png", transparency=0)
    assert as_array(tmp_path / "palette.png")[0].tolist() == [[0, 0, 0], [1, 2, 3]]


def test_a_cmyk_jpeg_and_an_array_are_rgb(tmp_path):
    assert open_image(picture(tmp_path / "print.jpg", mode="CMYK")).mode == "RGB"
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    assert (as_array(pixels) == pixels).all()
    assert open_image(pixels[:, ::-1]).size == (4, 3)


@pytest.mark.parametrize("name", ["deep.png", "deep.tif"])
def test_16_bit_files_are_refused_because_somebody_must_choose_the_window(tmp_path, name):
    path = _saved(tmp_path / name, np.full((3, 3), 40_000, np.uint16))
    with pytest.raises(DataError, match=rf"{name} has more than 8 bits per pixel \(mode I;16.*choose a window"):
        open_image(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.jpg is missing; restore"):
        open_image(tmp_path / "gone.jpg")


@pytest.mark.parametrize("keep", [0, 10, 0.5])
def test_a_corrupt_or_cut_off_jpeg_is_named(tmp_path, keep):
    path = tmp_path / "scan.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep) if keep < 1 else keep])
    with pytest.raises(DataError, match=r"scan\.jpg cannot be decoded; replace"):
        open_image(path)


def test_a_text_file_is_no_image(tmp_path):
    (tmp_path / "notes.png").write_text("not an image")
    with pytest.raises(DataError, match=r"notes\.png cannot be decoded"):
        open_image(tmp_path / "notes.png")


@pytest.mark.parametrize(
    "array",
    [np.zeros((3, 4), np.uint8), np.zeros((3, 4, 3)), np.zeros((3, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)],
)
def test_an_array_of_another_shape_or_type_is_refused(array):
    with pytest.raises(DataError, match=r"must be \(height, width, 3\), uint8"):
        open_image(array)

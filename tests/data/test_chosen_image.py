# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Frames and windows of image files; DICOM and NIfTI have tests of their own."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from layouts import picture
from PIL import Image

from fedpeft.core.errors import UnreadableImage
from fedpeft.data import DataError
from fedpeft.data.chosen_image import image_of
from fedpeft.data.images import as_array, check_header, open_image
from fedpeft.data.settings import Window

DEEP = np.arange(12, dtype=np.uint16).reshape(3, 4) * 1000


def named(root, name, window=None):
    return image_of(root, name, window, where="line 2")[0]


def test_a_usual_image_is_a_path_and_a_name_with_the_mark_is_a_file_where_there_is_one(tmp_path):
    assert named(tmp_path, picture(tmp_path / "a.png").name) == tmp_path / "a.png"
    picture(tmp_path / "a#1.png")
    assert named(tmp_path, "a#1.png") == tmp_path / "a#1.png"
    (tmp_path / "notes.txt").write_text("no image")
    assert named(tmp_path, "notes.txt") == tmp_path / "notes.txt"
    for name in ("b.png", "b.png#1"):
        with pytest.raises(DataError, match=r"b\.png, named in line 2, is missing"):
            named(tmp_path, name)


@pytest.mark.parametrize("suffix", ["gif", "tif", "png", "webp"])
def test_a_frame_is_chosen_by_its_number(tmp_path, suffix):
    frames = [Image.new("RGB", (4, 4), color) for color in ((255, 255, 255), (255, 0, 0), (0, 0, 255))]
    frames[0].save(tmp_path / f"many.{suffix}", save_all=True, append_images=frames[1:], lossless=True)
    for number, frame in enumerate(frames):
        image = named(tmp_path, f"many.{suffix}#{number}")
        check_header(image)
        assert (as_array(pickle.loads(pickle.dumps(image))) == np.asarray(frame)).all()
    for part, why in (("#3", "has no frame 3; name one of #0 to #2"), ("#coronal", "has no coronal slices")):
        with pytest.raises(UnreadableImage, match=why):
            open_image(named(tmp_path, f"many.{suffix}{part}"))


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_gray_values_are_shown_through_a_window(tmp_path, suffix):
    Image.fromarray(DEEP).save(tmp_path / f"deep.{suffix}")
    window = Window(1000, 9000)
    image = named(tmp_path, f"deep.{suffix}", window)
    check_header(image)
    assert (as_array(image) == window.grays(DEEP)[..., None]).all()
    with pytest.raises(UnreadableImage, match=r"more than 8 bits .* set data\.window"):
        open_image(named(tmp_path, f"deep.{suffix}"))


def test_a_window_leaves_8_bit_images_as_they_are(tmp_path):
    path = picture(tmp_path / "a.png")
    assert (as_array(named(tmp_path, "a.png", Window(100, 110))) == as_array(path)).all()


def test_two_parts_of_a_file_have_two_names(tmp_path):
    picture(tmp_path / "a.png")
    assert len({str(named(tmp_path, f"a.png{part}")) for part in ("", "#0", "#1")}) == 3

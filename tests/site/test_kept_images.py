# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from PIL import Image

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import DataError, FedpeftError
from fedpeft.data.images import ChosenImage
from fedpeft.data.settings import Window
from fedpeft.site.site_batches import KeptImages


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    paths = []
    for number, (mode, shape) in enumerate([("RGB", (40, 50, 3)), ("L", (40, 50)), ("RGBA", (40, 50, 4))]):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8), mode).save(paths[-1])
    return paths


def test_a_kept_image_is_the_files_to_the_bit_and_the_file_is_read_once(files):
    kept, direct = KeptImages(1), KeptImages(0)
    first = [np.asarray(kept.open(path)) for path in files]
    for path, pixels in zip(files, first, strict=True):
        np.testing.assert_array_equal(pixels, np.asarray(direct.open(path)))
        path.unlink()
        np.testing.assert_array_equal(pixels, np.asarray(kept.open(path)))
        with pytest.raises(DataError, match="missing"):
            direct.open(path)


def test_images_beyond_the_budget_are_read_again(files):
    kept = KeptImages(2 * 40 * 50 * 3 / 2**20)  # two of three
    for path in files:
        kept.open(path)
        path.unlink()
    assert [kept.open(path).size for path in files[:2]] == [(50, 40)] * 2
    with pytest.raises(DataError, match="missing"):
        kept.open(files[2])


def test_an_array_is_not_kept():
    pixels = np.zeros((4, 4, 3), dtype=np.uint8)
    kept = KeptImages(1)
    kept.open(pixels)
    pixels[:] = 7
    assert np.asarray(kept.open(pixels)).max() == 7


def test_a_budget_needs_a_process_that_lasts():
    assert TrainingSettings(rounds=1).kept_images_mib > 0
    assert TrainingSettings(rounds=1, workers=2).kept_images_mib == 0
    with pytest.raises(FedpeftError, match="after every epoch"):
        TrainingSettings(rounds=1, workers=2, images_mib=8)


def test_a_scan_shown_through_another_window_is_another_image(tmp_path):
    Image.fromarray(np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000).save(tmp_path / "scan.png")
    kept, direct = KeptImages(1), KeptImages(0)
    for window in (Window(20000, 20000), Window(50000, 10000)):
        image = ChosenImage(tmp_path / "scan.png", "", window)
        np.testing.assert_array_equal(np.asarray(kept.open(image)), np.asarray(direct.open(image)))

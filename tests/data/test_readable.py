# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Images that cannot be read: refused when the data are loaded, or skipped up to a share and counted."""

from __future__ import annotations

import pytest
from layouts import lines, picture
from PIL import ExifTags, Image

from fedpeft.cli import main
from fedpeft.data import DataError, DataSettings, load
from fedpeft.data.duplicates import fingerprints
from fedpeft.data.images import open_image

SPLITS = ["train"] * 12 + ["validation"] * 3 + ["test"] * 5


@pytest.fixture
def scans(tmp_path):
    """Twenty images with a question each; the fourth is cut off in its pixels, the fifth is no image."""
    for number in range(20):
        picture(tmp_path / f"{number}.jpg")
    rows = [f"{n}.jpg,Is it broken?,{('yes', 'no')[n % 2]},{split}" for n, split in enumerate(SPLITS)]
    lines(tmp_path / "manifest.csv", ["image,question,answer,split", *rows])
    Image.effect_noise((64, 64), 60).save(tmp_path / "3.jpg")
    content = (tmp_path / "3.jpg").read_bytes()
    (tmp_path / "3.jpg").write_bytes(content[: len(content) * 9 // 10])
    (tmp_path / "4.jpg").write_bytes(b"")
    return tmp_path


def _load(root, **settings):
    return load(DataSettings(dataset="manifest", root=root, site="north", **settings))


def test_a_file_that_is_none_is_refused_before_training(scans):
    sentence = r"'north': 1 of 20 images cannot be read, and unreadable=0 allows none \(.*4\.jpg cannot be decoded\)"
    with pytest.raises(DataError, match=sentence) as error:
        _load(scans)
    assert (error.value.code, error.value.setting) == ("data-unusable", "")  # what a server learns


def test_of_a_file_that_is_cut_off_only_the_pixels_tell(scans):
    picture(scans / "4.jpg")
    site = _load(scans)
    with pytest.raises(DataError, match=r"'north': 1 of 20 images cannot be read, .*3\.jpg cannot be decoded"):
        fingerprints(site)
    with pytest.raises(DataError, match=r"3\.jpg cannot be decoded"):
        open_image(next(e.image for e in site.train if e.image_id == "3.jpg"))


def test_up_to_a_share_they_are_skipped_counted_and_named(scans):
    site = _load(scans, unreadable=0.1)
    assert [len(part) for part in site.splits().values()] == [10, 3, 5]
    assert site.left_out == (("its image cannot be read", 2),)
    [note] = site.notes
    assert note.startswith("2 of 20 images cannot be read: ")
    assert "3.jpg cannot be decoded" in note
    assert "4.jpg cannot be decoded" in note
    assert len(fingerprints(site)) == 18
    (scans / "5.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"3 of 20 images cannot be read, more than unreadable=0\.1 allows"):
        _load(scans, unreadable=0.1)


def test_an_excluded_image_need_not_be_readable(scans):
    assert sum(map(len, _load(scans, exclude=["4.jpg"]).splits().values())) == 19


def test_of_many_problems_one_sentence_names_five(scans):
    for number in range(9):
        Image.new("RGBA", (4, 4)).save(scans / f"{number}.jpg", "PNG")
    with pytest.raises(DataError, match=r"9 of 20 .* is fully transparent; and 4 more\)\. What helps: save") as error:
        _load(scans, unreadable=0.4)
    assert str(error.value).count("is fully transparent") == 5
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("window", [{}, {"center": 40, "width": 400}])
@pytest.mark.parametrize("share", [0, 0.1])
def test_turned_photographs_are_counted(share, window, tmp_path):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    for number in range(20):
        chosen = {"exif": exif} if number < 3 else {}
        Image.new("RGB", (6, 4)).save(tmp_path / f"{number}.jpg", **chosen)
    rows = [f"{number}.jpg,is it?,{('yes', 'no')[number % 2]}" for number in range(20)]
    (tmp_path / "manifest.csv").write_text("\n".join(["image,question,answer", *rows]) + "\n")
    notes = _load(tmp_path, unreadable=share, window=window).notes
    assert notes == ("3 photographs are turned, as their EXIF orientation says.",)


def test_a_split_of_unreadable_images_is_no_split(scans):
    for number in range(15, 20):
        (scans / f"{number}.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="'north' has an empty test split"):
        _load(scans, unreadable=0.5)


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, "half", True, float("nan")])
def test_a_share_is_a_number_from_0_to_below_1(share):
    with pytest.raises(DataError, match=r"unreadable=.* must be a number from 0 to below 1"):
        DataSettings(unreadable=share)


@pytest.mark.slow
def test_the_command_counts_what_is_skipped(scans, capsys, monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    changes = ("data.dataset=manifest", f"data.root={scans}", "data.split=published", "data.unreadable=0.1")
    settings = [part for change in (*changes, "federation.sites=[north]") for part in ("--set", change)]
    assert main(["data", "vqa_rad", *settings]) == 0
    shown = capsys.readouterr().out
    assert "Left out, its image cannot be read: north 2." in shown
    assert main(["data", "vqa_rad", *settings, "--set", "data.unreadable=0"]) == 1
    assert "4.jpg cannot be decoded" in capsys.readouterr().err

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Images that sites share are reported, and fingerprints that may travel do not name them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedpeft.data import DataError, DataSettings, Example, SiteData, load
from fedpeft.data.duplicates import content_digest, duplicates, fingerprints
from fedpeft.report.data_summary import Overlap

SALT = bytes(range(16))


def _pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (4, 5, 3), dtype=np.uint8)


def _part(*images: tuple[str, int]) -> tuple[Example, ...]:
    return tuple(
        Example(image=_pixels(number), question=f"{q}?", answer="yes", closed=True, image_id=image_id)
        for image_id, number in images
        for q in ("a", "b")
    )


def _sites() -> list[SiteData]:
    """north and south share image 1 under one id, 2 under two ids, and each have another scan called `x`."""
    north = SiteData("north", _part(("i1", 1), ("i2", 2), ("x", 3)), (), _part(("i1", 1), ("i9", 9)), "")
    south = SiteData("south", _part(("i1", 1), ("j2", 2), ("x", 4)), (), _part(("i7", 7)), "")
    return [north, south]


@pytest.mark.parametrize("salt", [None, SALT])
def test_images_are_found_by_id_and_by_content(salt):
    common = duplicates(place for site in _sites() for place in fingerprints(site, salt=salt))
    places = [[(place.site, place.split) for place in duplicate.places] for duplicate in common]
    assert places == [
        [("north", "train"), ("north", "test"), ("south", "train")],
        [("north", "train"), ("south", "train")],
        [("north", "train"), ("south", "train")],
    ]
    assert [duplicate.same_content for duplicate in common] == [True, True, False]


def _rows(overlap: Overlap) -> list[str]:
    columns = [[str(text) for text in column.cells] for column in overlap.table().columns]
    return [" ".join(row) for row in zip(*columns, strict=True)]


def test_one_table_has_all_pairs_the_totals_and_how_many_test_images_training_knows():
    overlap = Overlap([mark for site in _sites() for mark in fingerprints(site)])
    assert _rows(overlap) == [
        "north/test north/train 1 1 1",
        "north/test south/train 1 1 1",
        "north/train south/train 3 2 0",
        "total  3 2 1",
    ]
    assert list(overlap.remarks()) == [
        "1 of 3 test images are in a training or validation split as well, which flatters the figures: leave them out "
        "there with data.exclude (at a hospital exclude in its site policy).",
        "data.sites.south.exclude: [i1]",
        "An image that is in two splits of north itself: set data.split=image_disjoint there.",
    ]


def test_what_the_remedy_names_leaves_no_test_image_in_training():
    north, south = _sites()
    north = replace(north, train=_part(("copy of i1", 1), ("i2", 2)))
    remarks = list(Overlap([mark for site in (north, south) for mark in fingerprints(site)]).remarks())
    assert remarks[1:] == ["data.sites.north.exclude: [copy of i1]", "data.sites.south.exclude: [i1]"]
    left = [north.without_images(["copy of i1"]), south.without_images(["i1"])]
    overlap = Overlap([mark for site in left for mark in fingerprints(site)])
    assert _rows(overlap) == ["north/train south/train 1 1 0", "total  1 1 0"]
    assert list(overlap.remarks()) == []


@pytest.mark.parametrize("salt", [None, SALT])
def test_names_in_a_sites_own_folder_are_compared_with_no_other_site(salt):
    marks = [mark for site in _sites() for mark in fingerprints(replace(site, own_ids=True), salt=salt)]
    assert _rows(Overlap(marks)) == [
        "north/test north/train 1 1 1",
        "north/test south/train 1 1 1",
        "north/train south/train 2 2 0",
        "total  2 2 1",
    ]


def test_sites_without_common_images_have_no_overlap():
    assert duplicates([]) == ()
    assert Overlap(fingerprints(SiteData("north", _part(("a", 1)), (), _part(("b", 2)), ""))).common == ()


def test_the_digest_is_of_the_pixels_not_of_the_file(tmp_path):
    Image.fromarray(_pixels(1)).save(tmp_path / "one.png")
    Image.fromarray(_pixels(1)).save(tmp_path / "two.bmp")
    digests = {content_digest(image) for image in (tmp_path / "one.png", tmp_path / "two.bmp", _pixels(1))}
    assert len(digests) == 1
    assert content_digest(_pixels(1).reshape(5, 4, 3)) not in digests
    assert content_digest(_pixels(2)) not in digests


def test_salted_fingerprints_name_no_image_and_change_with_the_salt():
    plain, salted, other = (fingerprints(_sites()[0], salt=salt) for salt in (None, SALT, SALT[::-1]))
    assert {place.image_id for place in plain} == {"i1", "i2", "x", "i9"}
    shown = [
        {place.image_id for place in prints} | {place.content for place in prints} for prints in (plain, salted, other)
    ]
    assert not shown[0] & shown[1]
    assert not shown[1] & shown[2]
    with pytest.raises(DataError, match="salt has 4 bytes; use at least 16"):
        fingerprints(_sites()[0], salt=b"abcd")


@pytest.mark.slow
@pytest.mark.skipif(
    not Path(os.environ.get("FEDPEFT_DATA") or "absent", "vqa_rad").is_dir(),
    reason="FEDPEFT_DATA does not point to a folder that holds vqa_rad",
)
@pytest.mark.real_data
def test_vqa_rad_as_published_shares_202_images_and_its_five_sites_none():
    whole = fingerprints(load(DataSettings(dataset="vqa_rad", validation_fraction=0)))
    assert _rows(Overlap(whole)) == ["vqa-rad/test vqa-rad/train 202 202 202", "total  202 202 202"]
    sites = ("head", "chest-a", "chest-b", "abd-a", "abd-b")
    five = [load(DataSettings(dataset="vqa_rad", site=site, split="image_disjoint")) for site in sites]
    assert duplicates(place for site in five for place in fingerprints(site)) == ()

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Images of a site that its backbone cannot take, such as a strip of 1000 x 3 pixels, known before training.

What an image processor does with an image follows from its size. A blank one goes through it for each of the sizes that
are most unlike a square or smallest, until several in a row are taken.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from fedpeft import backbones
from fedpeft.backbones import BACKBONES, Backbone, BackboneSettings
from fedpeft.data.errors import UnreadableImage
from fedpeft.data.images import check_header
from fedpeft.data.readable import images_of, without_problems
from fedpeft.data.schema import SiteData

Size = tuple[int, int]  # width and height
TAKEN = 16  # sizes in a row that are taken, before the less extreme ones are believed to be
USUAL_SIDE = 224
# what transformers' processors raise for an image that they make nothing of, and Pillow for one without pixels
REFUSED = (ValueError, TypeError, ArithmeticError, LookupError, RuntimeError, MemoryError)
REMEDY = "crop or pad it, or choose another backbone.name"


def fitting(data: SiteData, settings: BackboneSettings, share: float, *, download: bool = True) -> SiteData:
    """Return a site's data without the images that its backbone cannot take.

    Args:
        data: of the site.
        settings: of the backbone.
        share: of its images that may be left out; see `fedpeft.data.readable`.
        download: whether the image processor may be fetched.

    Raises:
        DataError: more of them are, or a split is empty without them; the message names some.
    """
    images = images_of(data)
    if not images or BACKBONES.get(settings.name).any_size:
        return data
    backbone = backbones.prepared(settings, download=download)
    problems = misfits(images, backbone, settings.name) if backbone else {}
    return without_problems(data, problems, of=len(images), share=share)


def misfits(images: Mapping[str, Any], backbone: Backbone, name: str) -> dict[str, UnreadableImage]:
    """Return what is wrong with the images that a backbone cannot take, by id.

    Args:
        images: by id; files inside tables are read.
        backbone: with its preparation of images; weights are not needed.
        name: of the backbone, for the sentence.
    """
    by_size: dict[Size, list[str]] = defaultdict(list)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        for image_id, size in zip(images, threads.map(_size, images.values()), strict=True):
            if size:
                by_size[size].append(image_id)
    refused = refused_sizes(by_size, lambda size: takes(backbone, size))
    why = {size: f"is of {size[0]} x {size[1]} pixels, which backbone {name!r} cannot take" for size in refused}
    return {one: UnreadableImage.of(images[one], why[size], REMEDY) for size in refused for one in by_size[size]}


def refused_sizes(sizes: Iterable[Size], taken: Callable[[Size], bool]) -> list[Size]:
    """Return the sizes that are not taken, of which the most extreme ones are tried first.

    Args:
        sizes: different ones.
        taken: tries one.
    """
    sizes, refused = list(sizes), dict[Size, None]()
    for extreme in (lambda size: -max(size) / min(size), min):
        in_a_row = 0
        for size in sorted(sizes, key=extreme):
            if in_a_row == TAKEN:
                break
            in_a_row += 1
            if size in refused or not taken(size):
                in_a_row, refused[size] = 0, None
    return list(refused)


def takes(backbone: Backbone, size: Size) -> bool:
    """Return whether a backbone makes a batch of an image of a size, and a usual one."""
    side = backbone.image_size or USUAL_SIDE
    usual = np.zeros((side, side, 3), np.uint8)
    try:
        batch = backbone.collate([Image.new("RGB", size), usual], ["a question"] * 2)
    except REFUSED:
        return False
    return all(0 not in tensor.shape for tensor in batch.values())


def _size(image: Any) -> Size | None:
    try:
        header = check_header(image, inside_tables=True)
    except UnreadableImage:  # said elsewhere
        return None
    return (header.width, header.height) if header else None

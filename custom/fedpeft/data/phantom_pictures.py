# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Procedural images with classes or labels: what their data sets share.

What is in an image is drawn first, for all images, so that every site knows who gets which; pixels are computed for the
site's own images only. The random numbers of an image depend on the seed and its number alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.data.labelled_images import site_of
from fedpeft.data.schema import Example, SiteData
from fedpeft.data.settings import NATURAL

if TYPE_CHECKING:
    from fedpeft.data.settings import DataSettings

SIZES = {"train": 210, "validation": 30, "test": 90}
TAKES = frozenset({"train_size", "validation_size", "test_size", "partition"})
NO_PIXELS = np.zeros((0, 0, 3), dtype=np.uint8)


def number_of_images(settings: DataSettings) -> int:
    """Return how many images the data set has: those of the splits, and times `parts` where it is shared out."""
    return sum(settings.sizes(SIZES).values()) * (1 if settings.partition == NATURAL else settings.parts)


def collection(settings: DataSettings) -> str:
    """Return the name of the images that a site draws from: its own, or one for all sites that share them."""
    return settings.dataset if settings.partition != NATURAL else settings.site or settings.dataset


def generator(seed: int, collection: str, *image: int) -> np.random.Generator:
    """Return the random numbers of a collection, or of one of its images."""
    return np.random.default_rng([seed, zlib.crc32(collection.encode()), *image])


def pictured(
    settings: DataSettings,
    usual: str,
    examples: Iterable[Example],
    draw: Callable[[int, np.random.Generator], np.ndarray],
    *,
    labels: Iterable[str] = (),
) -> SiteData:
    """Return a site's part of the data set, with pixels.

    Args:
        settings: of the site; the splits are cut with the shares that the sizes have.
        usual: its name where the settings have none.
        examples: without pixels, number 0 first.
        draw: from the number of an example and its random numbers to its image, (H, W, 3) uint8.
        labels: all of the data set, where images have labels.
    """
    examples = tuple(examples)
    place = {example.image_id: number for number, example in enumerate(examples)}
    where = f"procedural images ({settings.dataset}, seed {settings.seed}); no image of any person"
    data = site_of(_with_shares(settings), usual, where, train=examples, labels=labels)

    def with_pixels(example: Example) -> Example:
        number = place[example.image_id]
        image = draw(number, generator(settings.seed, collection(settings), number))
        image.flags.writeable = False
        return replace(example, image=image)

    train, validation, test = (tuple(map(with_pixels, split)) for split in (data.train, data.validation, data.test))
    return replace(data, train=train, validation=validation, test=test)


def _with_shares(settings: DataSettings) -> DataSettings:
    sizes = settings.sizes(SIZES)
    total = sum(sizes.values())
    return replace(settings, validation_fraction=sizes["validation"] / total, test_fraction=sizes["test"] / total)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Split examples by image: no image has questions in two of the splits that are made here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from fedpeft.data.errors import DataError
from fedpeft.data.schema import Example
from fedpeft.data.settings import DataSettings

SPELLINGS = {  # of a split's name in tables and folders
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "validate", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
Splits = tuple[tuple[Example, ...], tuple[Example, ...], tuple[Example, ...]]


def arrange(
    settings: DataSettings,
    *,
    train: Sequence[Example],
    test: Sequence[Example],
    validation: Sequence[Example] | None = None,
) -> Splits:
    """Return train, validation and test of a site, from the published splits and the settings.

    Args:
        settings: `split="image_disjoint"` pools everything and splits it again by image; otherwise the published
            splits stay, and a missing validation set is cut out of train by image.
        train, test: as published.
        validation: as published; None: none is published.
    """
    rng = np.random.default_rng(settings.seed)
    if settings.split == "image_disjoint":
        return pooled((*train, *(validation or ()), *test), settings)
    if validation is None:
        train, validation = by_image(train, (settings.validation_fraction,), rng)
    return tuple(train), tuple(validation), tuple(test)


def pooled(examples: Sequence[Example], settings: DataSettings) -> Splits:
    """Split one pool of examples by image into train, validation and test, with the settings' fractions and seed."""
    fractions = (settings.validation_fraction, settings.test_fraction)
    train, validation, test = by_image(examples, fractions, np.random.default_rng(settings.seed))
    return train, validation, test


def by_image(
    examples: Sequence[Example], fractions: Sequence[float], rng: np.random.Generator
) -> tuple[tuple[Example, ...], ...]:
    """Split examples so that all questions about one image, and all images of one group, stay together.

    Images or groups, in the order of their ids, are shuffled; part p gets round(f_p * images) of them, at least one
    where f_p > 0. Inside a part the examples keep their order.

    Args:
        examples: any number of questions per image.
        fractions: shares of the *images* or groups, one per part; 0 makes an empty part.
        rng: the only source of randomness.

    Returns:
        the rest, then the parts; all empty if there are no examples.

    Raises:
        DataError: there are too few of them for every part and the rest to have one.
    """
    if not examples:
        return ((),) * (1 + len(fractions))
    check_units(examples)
    units = sorted({example.unit for example in examples})
    counts = [max(1, round(fraction * len(units))) if fraction > 0 else 0 for fraction in fractions]
    if sum(counts) >= len(units):
        kind = "groups of images" if any(example.group for example in examples) else "images"
        raise DataError(
            f"{len(units)} {kind} are too few for parts of {', '.join(map(str, fractions))} and a training set; "
            f"add {kind} or lower the fractions."
        )
    order = rng.permutation(len(units))
    part_of = dict.fromkeys(units, 0)
    start = 0
    for part, count in enumerate(counts, 1):
        part_of.update((units[position], part) for position in order[start : start + count])
        start += count
    parts: list[list[Example]] = [[] for _ in range(len(counts) + 1)]
    for example in examples:
        parts[part_of[example.unit]].append(example)
    return tuple(map(tuple, parts))


def check_units(examples: Iterable[Example]) -> None:
    """Refuse an image that is said to be of two patients, or in some rows of one and in others of none.

    Raises:
        DataError: naming the image.
    """
    of_image: dict[str, str] = {}
    for example in examples:
        if of_image.setdefault(example.image_id, example.unit) != example.unit:
            raise DataError(f"The image {example.image_id!r} is in two groups (patients); give it one in all its rows.")


def halves(image_ids: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Split a set of images into two disjoint halves, for two sites that share a source.

    Images are ranked by the SHA-256 of their id, so the halves depend on nothing but the ids: two sites with different
    seeds still have no image in common. The first half has one more where the number is odd.
    """
    ranked = sorted(set(image_ids), key=lambda image_id: hashlib.sha256(image_id.encode()).digest())
    middle = (len(ranked) + 1) // 2
    return frozenset(ranked[:middle]), frozenset(ranked[middle:])

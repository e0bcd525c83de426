# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Split examples by image: no image has questions in two of the splits that are made here.

Rows of a site's own table that repeat or contradict each other, and images on both sides of a split.

A row that repeats another would count twice; the one that stays is that of the test split, else of validation, so that
nothing is trained on that is also measured. Of rows that give one question about one image different answers, or one
image different labels beside whatever report, nobody here knows which is right: all are left out. An image in two
splits stays, as the table says so, and is noted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from fedpeft.core.errors import DataError
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
    """Refuse an image that is said to be of two patients, or in some rows of one and in others of none."""
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


Placed = tuple[str | None, Example]  # the split, where the table has one
REPEATED = "another row has the same image, question and answer"
CONTRADICTED = "another row has the same image and question, and another answer"
_LAST_STAYS = ("train", "validation", "test")


def cleaned(rows: Sequence[Placed]) -> tuple[list[Placed], dict[str, int]]:
    """Return the rows without those that repeat or contradict each other, in their order, and how many of each."""
    targets: dict[Hashable, set[Hashable]] = {}
    for _, example in rows:
        targets.setdefault(_subject(example), set()).add(_target(example))
    agreed = [row for row in rows if len(targets[_subject(row[1])]) == 1]
    kept: dict[Hashable, int] = {}
    for place, (split, example) in enumerate(agreed):
        before = kept.setdefault(_question(example), place)
        if _rank(split) > _rank(agreed[before][0]):
            kept[_question(example)] = place
    places = sorted(kept.values())
    counts = {CONTRADICTED: len(rows) - len(agreed), REPEATED: len(agreed) - len(places)}
    return [agreed[place] for place in places], counts


def published(rows: Sequence[Placed]) -> list[str]:
    """Return a sentence each on what `cleaned` would leave out of data that stay as their owner publishes them."""
    notes = []
    counts = cleaned(rows)[1]
    if counts[REPEATED]:
        notes.append(
            f"{counts[REPEATED]:,} rows repeat image, question and answer of another; they stay, as published."
        )
    if counts[CONTRADICTED]:
        notes.append(
            f"{counts[CONTRADICTED]:,} rows have another answer than another row with their image and question."
        )
    return [*notes, *across_splits(rows)]


def across_splits(rows: Sequence[Placed]) -> list[str]:
    """Return a sentence each if images, or patients, are in more than one split of the table."""
    notes = []
    for several, ids in (
        ("images are", [(split, example.image_id) for split, example in rows]),
        ("patients are", [(split, example.group) for split, example in rows if example.group]),
    ):
        if common := sum(count > 1 for count in Counter(one for _, one in set(ids)).values()):
            notes.append(
                f"{common:,} {several} in more than one split, which flatters the figures; data.split=image_disjoint "
                f"splits again."
            )
    return notes


def _rank(split: str | None) -> int:
    return _LAST_STAYS.index(split) if split else 0


def _question(example: Example) -> Hashable:
    return example.image_id, " ".join(example.question.lower().split())


def _subject(example: Example) -> Hashable:
    """Return what has one right answer: a question about an image, or where there are labels the image alone."""
    return _question(example) if example.labels is None else example.image_id


def _target(example: Example) -> Hashable:
    return example.answer, frozenset(example.alternatives), example.labels, example.unknown_labels

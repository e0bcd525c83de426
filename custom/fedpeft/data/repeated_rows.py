# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Rows of a site's own table that repeat or contradict each other, and images on both sides of a split.

A row that repeats another would count twice; the one that stays is that of the test split, else of validation, so that
nothing is trained on that is also measured. Of rows that give one question about one image different answers, or one
image different labels beside whatever report, nobody here knows which is right: all are left out. An image in two
splits stays, as the table says so, and is noted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from fedpeft.data.schema import Example

Placed = tuple[str | None, Example]  # the split, where the table has one
REPEATED = "another row has the same image, question and answer"
CONTRADICTED = "another row has the same image and question, and another answer"
_LAST_STAYS = ("train", "validation", "test")


def cleaned(rows: Sequence[Placed]) -> tuple[list[Placed], dict[str, int]]:
    """Return the rows without those that repeat or contradict each other, in their order, and how many of each.

    Args:
        rows: of one site.
    """
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

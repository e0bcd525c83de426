# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Decide which examples are at a site, and in which split. A unit, an image or a patient's images, is never divided.

Splits: no unit is in two of those that are made here. Sites that share a data set (`data.partition`, `data.samples`)
all compute the same samples and the same parts from the whole table and the seed; each keeps its own part.

Rows of a site's own table: one that repeats another would count twice. The row of the test split stays, or else that of
validation, so that no sample is both trained and measured. Rows that give one question about one image different
answers, or one image different labels whatever its report, are all left out: nothing shows which is right. An image in
two splits stays, because the table says so, and is noted.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path

import numpy as np

from fedpeft.core.errors import DataError
from fedpeft.core.seeds import derive
from fedpeft.data.schema import Example, SiteData, added
from fedpeft.data.settings import DECIDE_PARTS, DIRICHLET, NATURAL, DataSettings

SPELLINGS = {  # of a split's name in tables and folders
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "validate", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_SIMILAR = {**SPELLINGS, "eval": "test", "evaluation": "test"}
Splits = tuple[tuple[Example, ...], tuple[Example, ...], tuple[Example, ...]]

Placed = tuple[str | None, Example]  # the split, where the table has one
REPEATED = "another row has the same image, question and answer"
CONTRADICTED = "another row has the same image and question, and another answer"
_LAST_STAYS = ("train", "validation", "test")

MIN_UNITS = 3  # of a part: one for each split
DRAWS = 100
_NUMBER = re.compile(r"(?<![0-9])0*([1-9][0-9]{0,4})$")
NO_LABEL = ""  # of units without labels
ANOTHERS = "it is another client's"
NOT_DRAWN = "not among data.samples"
MAX_OFF = 0.05  # from `train_share`, before a note says so
NOT_IN_SHARE = "not in data.train_share"

Parts = dict[tuple[Hashable, ...], list[list[tuple[Example, ...]]]]  # by the settings that decide them, site by site


def named_like_splits(names: Iterable[str]) -> bool:
    """Return whether one name has a word for training, and another one for test or validation."""
    splits = {_SIMILAR[word] for name in names for word in re.findall(r"[a-z]+", name.lower()) if word in _SIMILAR}
    return "train" in splits and len(splits) > 1


def arrange(
    settings: DataSettings,
    *,
    train: Sequence[Example],
    test: Sequence[Example],
    validation: Sequence[Example] | None = None,
) -> Splits:
    """Return train, validation and test of a site, from the published splits and the settings.

    `split="image_disjoint"` pools everything and splits it again by image. Otherwise the published splits stay, and a
    missing validation split (None) is cut out of train by image.
    """
    rng = np.random.default_rng(settings.seed)
    if settings.split == "image_disjoint":
        return pooled((*train, *(validation or ()), *test), settings)
    if validation is None:
        train, validation = split_by_image(train, (settings.validation_fraction,), rng)
    return tuple(train), tuple(validation), tuple(test)


def pooled(examples: Sequence[Example], settings: DataSettings) -> Splits:
    """Split one pool of examples by image into train, validation and test, with the settings' fractions and seed."""
    fractions = (settings.validation_fraction, settings.test_fraction)
    train, validation, test = split_by_image(examples, fractions, np.random.default_rng(settings.seed))
    return train, validation, test


def split_by_image(
    examples: Sequence[Example], fractions: Sequence[float], rng: np.random.Generator
) -> tuple[tuple[Example, ...], ...]:
    """Return the rest, then the parts; all questions about one image, and all images of one group, stay together.

    Images or groups, sorted by their ids, are shuffled; part p gets round(f_p * images) of them, at least one where
    f_p > 0. Inside a part the examples keep their order. All parts are empty if there are no examples.
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
    """Refuse an image with two patients, or with a patient in some rows only."""
    of_image: dict[str, str] = {}
    for example in examples:
        # a slice or frame has a file; an image out of a table has only its name
        image = example.image
        file = str(image if isinstance(image, Path) else getattr(image, "file", example.image_id))
        if of_image.setdefault(file, example.unit) != example.unit:
            raise DataError(
                f"The file of image {example.image_id!r} is in two groups (patients); give it one in all its rows."
            )


def halves(image_ids: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Split a set of images into two disjoint halves, for two sites that share a source.

    Images are ranked by the SHA-256 of their id, so the halves depend only on the ids: two sites with different seeds
    still share no image. The first half has one more if the number is odd.
    """
    ranked = sorted(set(image_ids), key=lambda image_id: hashlib.sha256(image_id.encode()).digest())
    middle = (len(ranked) + 1) // 2
    return frozenset(ranked[:middle]), frozenset(ranked[middle:])


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
    """Return sentences on rows that `cleaned` would leave out, for data that stay as published."""
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


def across_splits(rows: Sequence[Placed], *, groups_are: str = "patients") -> list[str]:
    """Return a sentence for images, and one for groups, that are in more than one split of the table."""
    notes = []
    groups = {example.group for _, example in rows} - {""}  # a volume's middle slice has the others' as its id
    for several, ids in (
        ("images are", [(split, example.image_id) for split, example in rows]),
        (f"{groups_are} are", [(split, example.unit) for split, example in rows if example.unit in groups]),
    ):
        if common := sum(count > 1 for count in Counter(name for _, name in set(ids)).values()):
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
    """Return what has one right answer: a question about an image, or, with labels, the image itself."""
    return _question(example) if example.labels is None else example.image_id


def _target(example: Example) -> Hashable:
    return example.answer, frozenset(example.alternatives), example.labels, example.unknown_labels


def drawn(settings: DataSettings, *splits: Sequence[Example]) -> list[tuple[Example, ...]]:
    """Return the examples that take part, split by split and in their order; see `_units`."""
    if settings.samples is None or sum(map(len, splits)) <= settings.samples:
        return [tuple(examples) for examples in splits]
    sizes = Counter(example.unit for examples in splits for example in examples)
    chosen = _units(sizes, settings.samples, derive(settings.seed, "samples"))
    parts = [tuple(example for example in examples if example.unit in chosen) for examples in splits]
    if any(examples and not part for examples, part in zip(splits, parts, strict=True)):
        raise DataError(
            f"samples={settings.samples} leaves a split of {settings.dataset} empty, of {sizes.total():,} samples; "
            f"raise it, or leave it out.",
            setting="data.samples",
        )
    return parts


def with_train_share(data: SiteData, settings: DataSettings) -> SiteData:
    """Return a site's data with a share of its training samples, at least one unit."""
    sizes = Counter(example.unit for example in data.train)
    chosen = _units(sizes, settings.train_share * sizes.total(), derive(settings.seed, "train_share"), min_units=1)
    train = tuple(example for example in data.train if example.unit in chosen)
    left_out = added(data.left_out, [(NOT_IN_SHARE, len(data.train) - len(train))])
    kept = len(train) / len(data.train)
    other = abs(kept - settings.train_share) > MAX_OFF
    notes = [
        f"train_share={settings.train_share:g} keeps {kept:.0%} of the training samples: images or patients are "
        f"kept or left out as a whole."
    ] * other
    return replace(data, train=train, left_out=left_out, notes=(*data.notes, *notes))


def _units(sizes: Mapping[str, int], limit: float, seed: int, *, min_units: int = 0) -> set[str]:
    """Return the first units of a random order whose sizes add up to at most `limit`; a lower limit gives a subset."""
    units = sorted(sizes)
    order = [units[i] for i in np.random.default_rng(seed).permutation(len(units))]
    totals = accumulate(sizes[unit] for unit in order)
    return {
        unit
        for number, (unit, total) in enumerate(zip(order, totals, strict=True))
        if total <= limit or number < min_units
    }


def own_parts(
    settings: DataSettings, *splits: Sequence[Example], parts: Parts | None = None
) -> list[tuple[Example, ...]]:
    """Return the examples of one site, in their order; a unit in several splits is still at one site.

    `parts` caches the parts of this very table between calls; other settings that decide them replace its content.
    """
    if settings.partition == NATURAL:
        return [tuple(examples) for examples in splits]
    part = part_of(settings)
    parts = {} if parts is None else parts
    decided = tuple(getattr(settings, name) for name in DECIDE_PARTS)
    if decided not in parts:
        parts.clear()
        parts[decided] = _divided(settings, splits)
    return parts[decided][part]


def _divided(settings: DataSettings, splits: Sequence[Sequence[Example]]) -> list[list[tuple[Example, ...]]]:
    """Return the examples of every site, split by split and in their order."""
    whole = list(chain.from_iterable(splits))
    check_units(whole)
    rng = np.random.default_rng([settings.seed, settings.parts])
    owner = _shared(settings, labels_of_units(whole), rng)
    found: list[list[list[Example]]] = [[[] for _ in splits] for _ in range(settings.parts)]
    for number, examples in enumerate(splits):
        for example in examples:
            found[owner[example.unit]][number].append(example)
    return [[tuple(examples) for examples in own] for own in found]


def part_of(settings: DataSettings) -> int:
    """Return a site's part, counted from 0."""
    found = _NUMBER.search(settings.site or "")
    if not found or int(found[1]) > settings.parts:
        raise DataError(
            f"site={settings.site!r} does not say which of {settings.parts} parts it has; end its name with a number "
            f"from 1 to {settings.parts}, as in client-1."
        )
    return int(found[1]) - 1


def labels_of_units(examples: Sequence[Example]) -> dict[str, tuple[str, ...]]:
    """Return the sorted labels, or answers, of every unit; units are in the order of their ids."""
    labels: dict[str, set[str]] = {}
    for example in examples:
        own = (example.answer,) if example.labels is None else example.labels
        labels.setdefault(example.unit, set()).update(own)
    return {unit: tuple(sorted(labels[unit])) for unit in sorted(labels)}


def _shared(settings: DataSettings, labels: dict[str, tuple[str, ...]], rng: np.random.Generator) -> dict[str, int]:
    """Return the part of every unit; draw again while a part has too few."""
    if len(labels) < MIN_UNITS * settings.parts:
        raise DataError(f"{len(labels)} images (or patients) are too few for parts={settings.parts}; lower parts.")
    for _ in range(DRAWS):
        owner = _dirichlet(labels, settings, rng) if settings.partition == DIRICHLET else _iid(labels, settings, rng)
        if np.bincount(list(owner.values()), minlength=settings.parts).min() >= MIN_UNITS:
            return owner
    raise DataError(
        f"alpha={settings.alpha:g} leaves one of parts={settings.parts} with fewer than {MIN_UNITS} of "
        f"{len(labels)} images (or patients); raise alpha, or lower parts.",
        setting="data.alpha",
    )


def _iid(labels: dict[str, tuple[str, ...]], settings: DataSettings, rng: np.random.Generator) -> dict[str, int]:
    units = list(labels)
    return {units[i]: place % settings.parts for place, i in enumerate(rng.permutation(len(units)))}


def _dirichlet(labels: dict[str, tuple[str, ...]], settings: DataSettings, rng: np.random.Generator) -> dict[str, int]:
    """Cut the units of each label by proportions drawn from Dir(alpha); a random one of a unit's labels counts."""
    of_label: dict[str, list[str]] = {}
    for unit, own in labels.items():
        of_label.setdefault(own[rng.integers(len(own))] if own else NO_LABEL, []).append(unit)
    owner: dict[str, int] = {}
    for label in sorted(of_label):
        units = of_label[label]
        ends = np.cumsum(rng.dirichlet(np.full(settings.parts, settings.alpha))) * len(units)
        parts = np.searchsorted(np.round(ends[:-1]), np.arange(len(units)), side="right")
        owner.update((units[i], int(part)) for i, part in zip(rng.permutation(len(units)), parts, strict=True))
    return owner


def _prefix_ids(part: SiteData) -> SiteData:
    def prefixed(examples: Sequence[Example]) -> tuple[Example, ...]:
        return tuple(
            replace(e, image_id=f"{part.site}/{e.image_id}", group=f"{part.site}/{e.group}" if e.group else "")
            for e in examples
        )

    return replace(part, train=prefixed(part.train), validation=prefixed(part.validation), test=prefixed(part.test))


def centralized(site: str, parts: Sequence[SiteData]) -> SiteData:
    """Return one site's data that pool those of others, split by split and in their order.

    Where sites choose the ids themselves, each gets the site's name as a prefix.
    """
    parts = [_prefix_ids(part) if part.own_ids else part for part in parts]
    train, validation, test = (
        tuple(chain.from_iterable(getattr(part, split) for part in parts)) for split in ("train", "validation", "test")
    )
    sources = dict.fromkeys(part.source for part in parts)
    kinds = {(part.labels, part.metric) for part in parts}
    if len(kinds) > 1:
        raise DataError(
            f"Site {site!r} pools {', '.join(repr(part.site) for part in parts)}, which have other labels or another "
            f"metric; pool sites of one kind."
        )
    labels, metric = kinds.pop()
    left_out = tuple(entry for entry in added(*(part.left_out for part in parts)) if entry[0] != ANOTHERS)  # pooled too
    notes = tuple(dict.fromkeys(chain.from_iterable(part.notes for part in parts)))
    own_ids = any(part.own_ids for part in parts)
    return SiteData(site, train, validation, test, "; ".join(sources), labels, metric, left_out, notes, own_ids)

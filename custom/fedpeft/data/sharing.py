# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Draw a part of a data set (`data.samples`), and share it out to several sites (`data.partition`).

It is shared at random, or with labels in other proportions at each site. Every site computes the same part and the same
partition from the whole table and the seed, and keeps its own share. What is never divided, an image or a group of
images such as those of one patient, is a unit here.

The data of several sites at one: centralized training, to compare a federation with; in the simulator only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np

from fedpeft.core.errors import DataError
from fedpeft.core.seeds import derive
from fedpeft.data.partition import check_units
from fedpeft.data.schema import Example, SiteData, added
from fedpeft.data.settings import DIRICHLET, NATURAL, DataSettings

MIN_UNITS = 3  # of a part: one for each split
DRAWS = 100
_NUMBER = re.compile(r"(?<![0-9])0*([1-9][0-9]{0,4})$")
NO_LABEL = ""
NOT_DRAWN = "not among data.samples"


def drawn(settings: DataSettings, *splits: Sequence[Example]) -> list[tuple[Example, ...]]:
    """Return the examples that take part, split by split and in their order.

    Units are taken in a random order until the next one would exceed `samples`, so a smaller number draws a part of
    what a larger one draws.
    """
    sizes = Counter(example.unit for examples in splits for example in examples)
    if settings.samples is None or sizes.total() <= settings.samples:
        return [tuple(examples) for examples in splits]
    units = sorted(sizes)
    order = [units[i] for i in np.random.default_rng(derive(settings.seed, "samples")).permutation(len(units))]
    totals = accumulate(sizes[unit] for unit in order)
    chosen = {unit for unit, total in zip(order, totals, strict=True) if total <= settings.samples}
    parts = [tuple(example for example in examples if example.unit in chosen) for examples in splits]
    if any(examples and not part for examples, part in zip(splits, parts, strict=True)):
        raise DataError(
            f"samples={settings.samples} leaves a split of {settings.dataset} empty, of {sizes.total():,} samples; "
            f"raise it, or leave it out.",
            setting="samples",
        )
    return parts


def own_parts(settings: DataSettings, *splits: Sequence[Example]) -> list[tuple[Example, ...]]:
    """Return the examples of one site, in their order; a unit that is in several splits is at one site all the same."""
    if settings.partition == NATURAL:
        return [tuple(examples) for examples in splits]
    part = part_of(settings)
    check_units(example for examples in splits for example in examples)
    labels = labels_of_units([example for examples in splits for example in examples])
    owner = _shared(settings, labels, np.random.default_rng([settings.seed, settings.parts]))
    return [tuple(example for example in examples if owner[example.unit] == part) for examples in splits]


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
    """Return the labels, or answers, of every unit, sorted; units in the order of their ids."""
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
        setting="alpha",
    )


def _iid(labels: dict[str, tuple[str, ...]], settings: DataSettings, rng: np.random.Generator) -> dict[str, int]:
    units = list(labels)
    return {units[i]: place % settings.parts for place, i in enumerate(rng.permutation(len(units)))}


def _dirichlet(labels: dict[str, tuple[str, ...]], settings: DataSettings, rng: np.random.Generator) -> dict[str, int]:
    """Cut the units of each label by proportions drawn from Dir(alpha); of several labels of a unit one, at random."""
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


def pooled(site: str, parts: Sequence[SiteData]) -> SiteData:
    """Return the data of one site that holds those of others, split by split and in their order."""
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
    left_out = added(*(part.left_out for part in parts))
    notes = tuple(dict.fromkeys(chain.from_iterable(part.notes for part in parts)))
    own_ids = any(part.own_ids for part in parts)
    return SiteData(site, train, validation, test, "; ".join(sources), labels, metric, left_out, notes, own_ids)

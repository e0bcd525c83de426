# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What loaders share: they make examples with a question, a class or labels, and one site's data from its splits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import BALANCED_ACCURACY, MACRO_F1
from fedpeft.data.answers import clean_text, closed_by_answer, closed_by_type, normalize
from fedpeft.data.folders import files_below, is_hidden, is_image, matches, tree
from fedpeft.data.partition import ANOTHERS, NOT_DRAWN, Parts, arrange, drawn, own_parts, pooled
from fedpeft.data.records import Row, reading
from fedpeft.data.registry import DataSet, Origin, packaged
from fedpeft.data.schema import Example, SiteData, added
from fedpeft.data.settings import NATURAL, DataSettings

TAKES = frozenset({"partition"})
_PUBLISHED = packaged("published")


def published_set(
    name: str, load: Callable[[DataSettings], SiteData], *, layout: str | None = None, **declared: Any
) -> DataSet:
    """Return a data set whose source, terms, metric, folders and layout by patterns (`matches`) published.json lists.

    `layout` is the docstring that begins with the expected files, if it is not that of `load`.
    """
    known = _PUBLISHED[name]
    patterns = [each if isinstance(each, str) else tuple(each) for each in known["recognized"]]
    return DataSet(
        load=load,
        metric=known["metric"],
        origin=Origin(title=known["title"], address=known["address"], terms=known["terms"]),
        recognized=matches(*patterns),
        layout=tree(layout or load.__doc__),
        folders=tuple(known["folders"]),
        **declared,
    )


def refuse_paper(settings: DataSettings, what: str) -> None:
    """Refuse the split of the papers where they have none."""
    if settings.split == "paper":
        raise DataError(f"split='paper' has no meaning for {what}; choose published or image_disjoint.")


def question_example(
    row: Row, image: Any, answers: Iterable[Any], *, image_id: str, answer_type: Any = None, question_type: str = ""
) -> Example:
    """Return the question of a row; the first answer is learned, and all are accepted.

    Without `answer_type`, OPEN or CLOSED, questions with the answer yes or no are closed.
    """
    with reading(row):
        normal = tuple(dict.fromkeys(map(normalize, answers)))
        closed = closed_by_answer(normal[0]) if answer_type is None else closed_by_type(answer_type)
    return Example(
        image, row.text("question"), normal[0], closed, image_id, question_type=question_type, alternatives=normal[1:]
    )


def site_of_questions(
    settings: DataSettings,
    default: str,
    source: str,
    *,
    train: Sequence[Example],
    test: Sequence[Example],
    validation: Sequence[Example] | None = None,
    left_out: Iterable[tuple[str, int]] = (),
) -> SiteData:
    """Return a site's questions, split as published or by image; arguments as for `site_of`."""
    splits = arrange(settings, train=train, validation=validation, test=test)
    source = f"{source}, {'split by image' if settings.split == 'image_disjoint' else 'published split'}"
    return SiteData(settings.site or default, *splits, source, left_out=added(left_out))


def class_example(image: Any, name: str, *, image_id: str, group: str = "") -> Example:
    """Return an image with its class; see `Example` for the arguments."""
    written = _written([name])
    return Example(image, "", normalize(name), closed=False, image_id=image_id, group=group, written=written)


def label_example(
    image: Any, labels: Iterable[str], *, image_id: str, group: str = "", text: str = "", unknown: Iterable[str] = ()
) -> Example:
    """Return an image with its labels; `unknown` are those that may or may not apply (see `Example`)."""
    labels, unknown = tuple(labels), tuple(unknown)
    has, open_ = (tuple(sorted(set(map(normalize, names)))) for names in (labels, unknown))
    return Example(
        image,
        text,
        "",
        closed=False,
        image_id=image_id,
        labels=has,
        unknown_labels=open_,
        group=group,
        written=_written((*labels, *unknown)),
    )


def _written(names: Iterable[str]) -> tuple[str, ...]:
    """Return names without repeated blanks, only those that differ from their normal form."""
    spelled = (clean_text(" ".join(str(name).split())) for name in names)
    return tuple(sys.intern(name) for name in spelled if name != normalize(name))


def site_of(
    settings: DataSettings,
    default: str,
    source: str,
    *,
    train: Sequence[Example],
    test: Sequence[Example] | None = None,
    validation: Sequence[Example] | None = None,
    labels: Iterable[str] = (),
    left_out: Iterable[tuple[str, int]] = (),
    notes: Iterable[str] = (),
    parts: Parts | None = None,
) -> SiteData:
    """Return a site's part of a set of images; classes are measured by balanced accuracy, labels by macro-F1.

    Without a test split everything in `train` is split here, by image and group. `labels` has all of the data set;
    `left_out` and `notes` are those of `SiteData`, `parts` those of `own_parts`.
    """
    refuse_paper(settings, settings.dataset)
    whole = (train,) if test is None else (train, validation or (), test)
    used = drawn(settings, *whole)
    own = own_parts(settings, *used, parts=parts)
    counts = [sum(map(len, splits)) for splits in (whole, used, own)]
    unused = ((NOT_DRAWN, counts[0] - counts[1]), (ANOTHERS, counts[1] - counts[2]))
    if test is None:
        splits = pooled(own[0], settings)
    else:
        splits = arrange(settings, train=own[0], test=own[2], validation=None if validation is None else own[1])
    if settings.partition != NATURAL:
        splits = (_own_copies(splits[0]), _own_copies(splits[1]), _own_copies(splits[2]))
    known = tuple(sorted(map(normalize, labels)))
    return SiteData(
        settings.site or default,
        *splits,
        source,
        labels=known,
        metric=MACRO_F1 if known else BALANCED_ACCURACY,
        left_out=tuple((why, count) for why, count in (*left_out, *unused) if count),
        notes=tuple(notes),
    )


def class_folders(root: Path) -> dict[str, list[Path]]:
    """Return the image files of each folder below `root`, sorted."""
    found = {
        folder.name: list(filter(is_image, files_below(folder)))
        for folder in sorted(root.iterdir())
        if folder.is_dir() and not is_hidden(folder.name)
    }
    found = {name: files for name, files in found.items() if files}
    if not found:
        raise DataError(f"{root} holds no folder of images; put one folder for each class there.")
    return found


def _own_copies(examples: Sequence[Example]) -> tuple[Example, ...]:
    """Copy images, so that the array with the images of all parts can be freed."""
    return tuple(replace(e, image=e.image.copy()) if isinstance(e.image, np.ndarray) else e for e in examples)

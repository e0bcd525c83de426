# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A site's own data: a folder with its images and one table, of questions, of classes or of labels.

    manifest.csv     image,question,answer[,answer_type][,split][,question_type][,patient]     with a header
                     image,label[,split][,patient]             one class for each image
                     image,labels[,text][,split][,patient]     any number of labels, joined by |, and a report
    manifest.jsonl   {"image": "scans/1.png", "question": "...", "answer": "..."}    one object per line, the same keys

image: path relative to the folder, and the id of the image; for DICOM, NIfTI and files of several frames see
`fedpeft.data.chosen_image`. answer_type: OPEN or CLOSED; without it yes and no are closed. split: train, validation (or
validate, valid, val, dev) or test; without the column the images are split by `test_fraction` and
`validation_fraction`, and with it a missing validation set is cut out of train. patient: images of one patient stay in
one of the splits that are made here. An image may have no label: the field is empty then. Without `root` the folder is
FEDPEFT_DATA/<site>, or FEDPEFT_DATA itself. For rows that repeat or contradict others see `fedpeft.data.partition`.

Columns are separated by commas, semicolons (as spreadsheets write them where the comma is decimal), tabs or vertical
bars, and their names are read in any case, with blanks around them, and with a blank or hyphen for `_`. Nothing else is
guessed: a column with an unknown name is not read, and the notes say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedpeft.core.errors import DataError
from fedpeft.core.metrics import ACCURACY, BALANCED_ACCURACY, MACRO_F1
from fedpeft.data.answers import MAYBE_MISSING, is_missing
from fedpeft.data.chosen_image import image_name, image_of
from fedpeft.data.folders import dataset_folder, inside, matches, tree
from fedpeft.data.images import ChosenImage
from fedpeft.data.loaders import class_example, label_example, question_example, refuse_paper
from fedpeft.data.partition import SPELLINGS, Placed, Splits, across_splits, arrange, check_units, cleaned, pooled
from fedpeft.data.records import (
    SEPARATORS,
    BadRows,
    Row,
    convert_rows,
    csv_rows,
    header,
    jsonl_rows,
    read_text,
    reading,
    without_separator_line,
)
from fedpeft.data.registry import DataSet
from fedpeft.data.schema import Example, SiteData, added
from fedpeft.data.settings import DataSettings, Window, window_of

FILES = ("manifest.csv", "manifest.jsonl")
_SHOWN = 300

_IMAGE = "image"
_OPTIONAL = ("split", "patient")  # optional ones


class Table(NamedTuple):
    """A folder's table."""

    rows: list[Row]  # that can be read, under the known names
    columns: list[str]  # as they are spelled
    notes: list[str]  # what is unusual
    bad: BadRows  # rows that cannot be read; check it after the others
    total: int  # number of all rows


def table(root: Path, known: Iterable[str]) -> Table:
    """Read the table of a folder."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; name the one that holds the table, or its {' or '.join(FILES)}.")
    files = sorted(file for file in root.iterdir() if file.name.lower() in FILES and file.is_file())
    if not files:
        raise DataError(f"{root} holds neither 'manifest.csv' nor 'manifest.jsonl'; put the site's table there.")
    if len(files) > 1:
        raise DataError(f"Both {files[0]} and {files[1]} are there; keep one of them.")
    file, known = files[0], frozenset(known)
    notes, bad = [], BadRows(files[0])
    if file.suffix.lower() == ".csv":
        separator = _separator(file, known)
        rows = csv_rows(file, (), separator=separator, bad=bad)
        if separator != ",":
            notes.append(f"The columns of {file.name} are separated by {SEPARATORS[separator]}.")
    else:
        rows = jsonl_rows(file, bad)
    columns = list(dict.fromkeys(name for row in rows for name in row.values))
    as_known = {name: _spelled(name) for name in columns if _spelled(name) in known}
    if others := [f"{name!r} as {read}" for name, read in as_known.items() if name != read]:
        notes.append(f"Columns of {file.name} that are spelled otherwise are read: {', '.join(others)}.")
    if unread := [repr(name) for name in columns if name not in as_known]:
        notes.append(f"Columns of {file.name} that are not read: {', '.join(unread):.{_SHOWN}}.")
    count = len(rows) + bad.count
    named = convert_rows(rows, lambda row: _rename_columns(row, as_known), bad)
    if not named:
        bad.refuse_any(count)
    return Table(named, columns, notes, bad, count)


def _separator(file: Path, known: frozenset[str]) -> str:
    """Return the separator of columns: that of a line `sep=`, or the one that gives most known names."""
    named, text = without_separator_line(read_text(file))
    headers = {separator: header(text, separator) for separator in ([named] if named else SEPARATORS)}
    separator = max(headers, key=lambda each: len(known.intersection(map(_spelled, headers[each]))))
    first: dict[str, str] = {}
    for name in headers[separator]:
        if (other := first.setdefault(_spelled(name), name)) is not name and _spelled(name) in known:
            raise DataError(f"{file} has the columns {other!r} and {name!r}, which read alike; rename one of them.")
    return separator


def _rename_columns(row: Row, as_known: dict[str, str]) -> Row:
    """Return a row under the known names of its columns, without the others."""
    values: dict[str, object] = {}
    for name, value in row.values.items():
        if name in as_known:
            if as_known[name] in values:
                raise DataError(f"{row.where}: {as_known[name]!r} is there twice; remove one of them.")
            values[as_known[name]] = value
    return Row(row.where, values)


def _spelled(name: object) -> str:
    return "_".join(str(name).lower().replace("-", " ").replace("_", " ").split())


class Kind(NamedTuple):
    """What a table is about."""

    keys: tuple[str, ...]  # columns that it needs beside the image
    example: Callable[[Row, Path | ChosenImage, str], Example]  # makes the example of a row
    metric: str
    optional: tuple[str, ...] = ()  # columns besides the optional ones of all kinds
    may_be_empty: bool = False  # whether a row may have empty values under the keys


def load(settings: DataSettings) -> SiteData:
    """Load a site's own folder."""
    refuse_paper(settings, "a manifest")
    root = dataset_folder(settings, (settings.site, ".") if settings.site else (".",))
    read = table(root, (_IMAGE, *_OPTIONAL, *(key for kind in KINDS for key in (*kind.keys, *kind.optional))))
    rows, bad = read.rows, read.bad
    kind, window = _kind(rows, read.columns), window_of(settings.window)
    own = {_IMAGE, *_OPTIONAL, *kind.keys, *kind.optional}
    if of_others := sorted({name for row in rows for name in row.values} - own):
        beside = " and ".join(map(repr, kind.keys))
        read.notes.append(f"Columns that are not read beside {beside}: {', '.join(map(repr, of_others))}.")
    some_split = not all(is_missing(row.values.get("split"), or_none=True) for row in rows)
    placed = convert_rows(rows, lambda row: (_split_of(row, some_split), _example(row, root, kind, window)), bad)
    bad.refuse_any(read.total)
    check_units(example for _, example in placed)
    kept, left_out = cleaned(placed)
    site = settings.site or root.resolve().name
    source = f"the site's own data ({site}), real data as its manifest lists them"
    return SiteData(
        site,
        *_splits(settings, kept),
        source,
        labels=_labels(settings, [example for _, example in placed]),
        metric=kind.metric,
        left_out=added(left_out.items()),
        notes=(*read.notes, *_unusual(settings, rows, kept)),
        own_ids=True,
    )


def _splits(settings: DataSettings, rows: list[Placed]) -> Splits:
    parts: dict[str | None, list[Example]] = {"train": [], "validation": [], "test": [], None: []}
    for split, example in rows:
        parts[split].append(example)
    if parts[None]:
        return pooled(parts[None], settings)
    return arrange(settings, train=parts["train"], test=parts["test"], validation=parts["validation"] or None)


def _kind(rows: list[Row], columns: list[str]) -> Kind:
    """Return what a table is about."""
    there = {name for row in rows for name in row.values}
    has = ", ".join(map(repr, columns))
    kinds = [kind for kind in KINDS if there.intersection(kind.keys)] or [KINDS[0]]
    needed = "; or ".join(", ".join((_IMAGE, *kind.keys)) for kind in KINDS)
    if len(kinds) > 1:
        file = rows[0].where.rpartition(",")[0]
        raise DataError(f"{file} has the columns {has:.200}, and a manifest has {needed}: keep those of one kind.")
    if missing := [key for key in (_IMAGE, *kinds[0].keys) if key not in there]:
        raise DataError(
            f"{rows[0].where}: {missing[0]!r} is missing; a manifest needs {needed}, and this one has {has:.200}."
        )
    return kinds[0]


def _check_filled(row: Row, kind: Kind) -> None:
    """Refuse a row without a value that its kind needs, or with what programs write for a missing value."""
    for key in (_IMAGE, *kind.keys):
        if key not in row.values:
            raise DataError(f"{row.where}: {key!r} is missing, which other rows have; fill it in, or remove the row.")
    for key in kind.keys:
        if is_missing(row.values[key]) and (row.label(key) or not kind.may_be_empty):
            raise DataError(
                f"{row.where}: {key!r} is empty, or what programs write where a value is missing (nan, n/a, null); "
                f"fill it in, or remove the row."
            )


def _unusual(settings: DataSettings, rows: list[Row], kept: list[Placed]) -> Iterable[str]:
    """Yield a sentence for each thing that a site should know about its table."""
    if settings.split == "published":
        yield from across_splits(kept)
    patients = Counter(group.casefold() for group in {example.group for _, example in kept if example.group})
    if several := sum(count > 1 for count in patients.values()):
        yield (
            f"{several:,} patients are written both with small and with capital letters and count as several: write "
            f"each in one way."
        )
    counts = Counter(answer for _, example in kept for answer in (example.labels or (example.answer,)))
    for answer in MAYBE_MISSING:
        if counts[answer]:
            yield (
                f"{counts[answer]:,} answers are {answer!r}, which is an answer like others: where it says that a "
                f"value is missing, remove these rows."
            )
    if any("patient" in row.values for row in rows) and (alone := sum(not e.group for _, e in kept)):
        yield f"{alone:,} rows name no patient; their images count as different patients."


def _split_of(row: Row, needed: bool) -> str | None:
    label = row.values.get("split")
    if is_missing(label, or_none=True):
        if needed:
            raise DataError(f"{row.where}: 'split' is empty while other rows have one; fill it in.")
        return None
    if not isinstance(label, str) or label.strip().lower() not in SPELLINGS:
        raise DataError(f"{row.where}: split is {label!r}; allowed are train, validation and test.")
    return SPELLINGS[label.strip().lower()]


def _example(row: Row, root: Path, kind: Kind, window: Window | None) -> Example:
    _check_filled(row, kind)
    name = inside(root, row.text(_IMAGE), where=row.where)
    image, file = image_of(root, name, window, where=row.where)
    with reading(row):
        example = kind.example(row, image, image_name(name, file))
    if file == name or example.group:
        return example
    return replace(example, group=file)  # slices of a volume stay together


def optional(row: Row, key: str) -> str:
    """Return an optional field as text; empty where it is absent, or what programs write for a missing value."""
    return "" if is_missing(row.values.get(key), or_none=True) else row.label(key)


def _patient(row: Row) -> str:
    """Return the patient of a row in one form, whatever the number of blanks, and the same for 7 and 7.0."""
    value = row.values.get("patient")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return " ".join(optional(row, "patient").split())


def _question(row: Row, file: Path | ChosenImage, name: str) -> Example:
    example = question_example(
        row,
        file,
        [row.values["answer"]],
        image_id=name,
        answer_type=optional(row, "answer_type") or None,
        question_type=optional(row, "question_type"),
    )
    return replace(example, group=_patient(row))


def _class(row: Row, file: Path | ChosenImage, name: str) -> Example:
    return class_example(file, row.values["label"], image_id=name, group=_patient(row))


def _labelled(row: Row, file: Path | ChosenImage, name: str) -> Example:
    given = row.values["labels"]
    listed = given if isinstance(given, list) else "" if given is None else given
    listed = listed.split("|") if isinstance(listed, str) else listed
    if not isinstance(listed, list) or not all(isinstance(label, str) for label in listed):
        raise DataError("'labels' is neither text nor a list of texts")
    labels = {label.strip() for label in listed} - {""}
    if any(map(is_missing, labels)):
        raise DataError("'labels' has among them what programs write where a value is missing (nan, n/a, null)")
    return label_example(file, labels, image_id=name, group=_patient(row), text=optional(row, "text"))


KINDS = (
    Kind(("question", "answer"), _question, ACCURACY, optional=("answer_type", "question_type")),
    Kind(("labels",), _labelled, MACRO_F1, optional=("text",), may_be_empty=True),
    Kind(("label",), _class, BALANCED_ACCURACY),
)


def _labels(settings: DataSettings, examples: list[Example]) -> tuple[str, ...]:
    """Return the labels that the job names, or else those of the table; empty: this kind has none."""
    found = {label for example in examples if example.labels is not None for label in example.labels}
    if all(example.labels is None for example in examples):
        return ()
    if settings.answers and (others := found - set(settings.answers)):
        raise DataError(f"{len(others)} labels of the manifest are not in data.answers; add them.")
    if not found and not settings.answers:
        raise DataError("no image of the manifest has a label; fill in 'labels', or name them in data.answers.")
    return tuple(sorted(settings.answers or found))


DATASET = DataSet(
    load=load,
    takes=frozenset({"window"}),
    recognized=matches("/manifest.csv", "/manifest.jsonl"),
    layout=tree(__doc__),
    folders=("{site}", "."),
)

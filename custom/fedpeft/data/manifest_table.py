# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read the table of a site's own folder: which file, what is between its columns, and how they are spelled.

Columns are separated by commas, semicolons (as spreadsheets write them where the comma is decimal) or tabs, and their
names are read in any case, with blanks around them, and with a blank or hyphen for `_`. Nothing else is guessed: a name
that is none of the known ones is a column that is not read, and the notes say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fedpeft.data.errors import DataError
from fedpeft.data.records import SEPARATORS, BadRows, Row, csv_rows, header, jsonl_rows, of_rows, read_text

FILES = ("manifest.csv", "manifest.jsonl")
_SHOWN = 300


class Table(NamedTuple):
    """A folder's table.

    Args:
        rows: under the known names, without those that cannot be read.
        columns: as they are spelled.
        notes: what is unusual.
        bad: has gathered those that cannot be read; whoever reads the others checks it at the end.
        total: rows in all.
    """

    rows: list[Row]
    columns: list[str]
    notes: list[str]
    bad: BadRows
    total: int


def table(root: Path, known: Iterable[str]) -> Table:
    """Read the table of a folder.

    Args:
        root: the folder.
        known: names of columns.

    Raises:
        DataError: there is no folder or no table, there are two, no row of it can be read, or two of its columns have
            the same name.
    """
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
    named = of_rows(rows, lambda row: _named(row, as_known), bad)
    if not named:
        bad.check(count)
    return Table(named, columns, notes, bad, count)


def _separator(file: Path, known: frozenset[str]) -> str:
    """Return what is between the columns: that which gives most known names; no two may read alike."""
    text = read_text(file)
    headers = {separator: header(text, separator) for separator in SEPARATORS}
    separator = max(headers, key=lambda one: len(known.intersection(map(_spelled, headers[one]))))
    first: dict[str, str] = {}
    for name in headers[separator]:
        if (other := first.setdefault(_spelled(name), name)) is not name and _spelled(name) in known:
            raise DataError(f"{file} has the columns {other!r} and {name!r}, which read alike; rename one of them.")
    return separator


def _named(row: Row, as_known: dict[str, str]) -> Row:
    values: dict[str, object] = {}
    for name, value in row.values.items():
        if name in as_known:
            if as_known[name] in values:
                raise DataError(f"{row.where}: {as_known[name]!r} is there twice; remove one of them.")
            values[as_known[name]] = value
    return Row(row.where, values)


def _spelled(name: object) -> str:
    return "_".join(str(name).lower().replace("-", " ").replace("_", " ").split())

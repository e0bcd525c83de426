# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read rows of the publishers' files: JSON lists, JSON lines, CSV with a header, and lines with fields between bars.

Texts are in one Unicode form (`clean_text`). Every row has its file and line number for errors. No error repeats a
question or an answer.

A large CSV table, packed with gzip or not, is read line by line, and only the needed columns are kept. A packed file
can unpack to a thousand times its size, so both the file and its lines have an upper limit.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, TypeVar

from fedpeft.core.errors import DataError
from fedpeft.data.answers import clean_values, is_missing
from fedpeft.data.folders import either

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
INCOMPLETE = "it lacks an image, a question or an answer"
MAX_NAMED = 20  # bad rows that one message names
_MAX_LEVELS = 20  # of nesting
T = TypeVar("T")
_SEPARATOR_LINE = re.compile(r'("?)sep=(?P<separator>[,;\t|])\1(?P=separator)* *(?:\r\n?|\n)', re.IGNORECASE)
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

MAX_BYTES = 2**29
MAX_LINE = 2**16


@dataclass(frozen=True, slots=True)
class Row:
    """One record and its place, e.g. `train.json, record 17`."""

    where: str
    values: dict[str, Any]

    def label(self, key: str) -> str:
        """Return a field that may be absent or empty, as text without blanks at its ends."""
        value = self.values.get(key)
        return "" if value is None else str(value).strip()

    def text(self, key: str) -> str:
        """Return a field that must be text and not empty, without blanks at its ends."""
        value = self.values[key]
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{self.where}: {key!r} is empty or not text; correct that row.")
        return value.strip()


class BadRows:
    """Gathers what is wrong with single rows of a file, so that one error names all of them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._first: list[DataError] = []
        self.count = 0

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Gather the error of one row instead of raising it."""
        try:
            yield
        except DataError as error:
            self.count += 1
            if self.count <= MAX_NAMED:
                self._first.append(error)

    def refuse_any(self, total: int) -> None:
        """Refuse the file, of `total` rows, if a row was bad."""
        if self.count == 1:
            raise self._first[0]
        if self.count:
            some = f", the first {MAX_NAMED} are" if self.count > MAX_NAMED else ""
            lines = "\n".join(str(error).replace(f"{self._file}, ", "") for error in self._first)
            raise DataError(f"{self._file}: {self.count:,} of {total:,} rows cannot be used{some}:\n{lines}")


def convert_rows(rows: Sequence[Row], read: Callable[[Row], T], bad: BadRows) -> list[T]:
    """Return what `read` makes of each row; gather the errors of rows that it refuses."""
    made: list[T] = []
    for row in rows:
        with bad.gathering():
            made.append(read(row))
    return made


@contextmanager
def reading(row: Row) -> Iterator[None]:
    """Add a row's file and line to errors about its values."""
    try:
        yield
    except DataError as error:
        if str(error).startswith(row.where):
            raise
        raise DataError(f"{row.where}: {error}; correct that row.") from error


def json_rows(path: Path, keys: Iterable[str]) -> list[Row]:
    """Read the records of a JSON list; each must have the keys."""
    records = _parse(read_text(path), str(path), "download it again")
    if not isinstance(records, list):
        raise DataError(f"{path} is not a JSON list of records; put the publisher's file there.")
    rows = [Row(f"{path}, record {number}", record) for number, record in enumerate(records, 1)]
    return _check_rows(path, rows, keys)


def jsonl_rows(path: Path, bad: BadRows) -> list[Row]:
    """Read a file with one JSON object per line; blank lines are skipped."""
    rows = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            with bad.gathering():
                where = f"{path}, line {number}"
                rows.append(_object(Row(where, _parse(line, where, "correct that line"))))
    return _check_rows(path, rows, (), bad=bad)


def _parse(text: str, where: str, remedy: str) -> Any:
    """Return the value of a JSON text; refuse deeper nesting than a record needs."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise DataError(f"{where} is not valid JSON ({error.msg}, {place}); {remedy}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is nested too deeply, or has too long a number; {remedy}.") from error
    level = [value]
    for _ in range(_MAX_LEVELS):
        containers = [item for item in level if isinstance(item, (dict, list))]
        level = [inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)]
    if level:
        raise DataError(f"{where} is nested too deeply; {remedy}.")
    return value


def csv_rows(path: Path, keys: Iterable[str], *, separator: str = "", bad: BadRows | None = None) -> list[Row]:
    """Read a CSV file with a header; quoted fields may hold separators and line breaks.

    Without `separator`, that of the first line `sep=;` counts, or the one of `SEPARATORS` that gives most of the keys.
    The file must have the keys. `bad` gathers the lines that cannot be read; without it they are refused.
    """
    gathered = bad or BadRows(path)
    (named, text), keys = without_separator_line(read_text(path)), tuple(keys)
    separator = separator or named or max(SEPARATORS, key=lambda each: len({*keys}.intersection(header(text, each))))
    skips, before = _skips_blanks(text, separator), bool(named)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=skips)
    rows = []
    with gathered.gathering():
        try:
            for record in reader:
                where = f"{path}, line {before + reader.line_num}"
                with gathered.gathering():
                    if None in record or None in record.values():
                        raise DataError(
                            f"{where}: it has fewer or more fields than the header; quote fields that hold "
                            f"{separator!r}."
                        )
                    rows.append(Row(where, record))
        except csv.Error as error:  # nothing after it can be read
            raise DataError(
                f"{path}, line {before + reader.reader.line_num}: not valid CSV ({error}); correct that line."
            ) from error
    if bad is None or not rows:  # the header may be among them
        gathered.refuse_any(len(rows) + gathered.count)
    _check_columns(path, keys, reader.fieldnames or ())
    return _check_rows(path, rows, keys, bad=bad)


def _skips_blanks(text: str, separator: str) -> bool:
    """Return whether quotes may follow blanks, which holds if the whole text can be read so."""
    if separator == "\t" or f'{separator} "' not in text:
        return separator != "\t"
    try:
        for _ in csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True):
            pass
    except csv.Error:
        return False
    return True


def without_separator_line(text: str) -> tuple[str, str]:
    """Return the separator of a first line `sep=;`, as for Excel, empty without one, and the other lines."""
    first = _SEPARATOR_LINE.match(text)
    return (first["separator"], text[first.end() :]) if first else ("", text)


def header(text: str, separator: str) -> list[str]:
    """Return the first row of a CSV text with a separator; empty if it cannot be read."""
    try:
        return next(
            csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=separator != "\t"), []
        )
    except csv.Error:  # reading the rows with the chosen separator raises it again
        return []


def complete(rows: Sequence[Row], keys: Iterable[str]) -> list[Row]:
    """Return the rows that have a value under all of the keys."""
    keys = tuple(keys)
    return [row for row in rows if not any(is_missing(row.values.get(key)) for key in keys)]


def bar_rows(path: Path, fields: Sequence[str], *, alternatives: bool = False, separator: str = "|") -> list[Row]:
    """Read a file without header whose fields are separated by `|`, with LF or CRLF ends; blank lines are skipped.

    With `alternatives` a line may have more fields, which the key `alternatives` holds.
    """
    rows = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        parts = [part.strip() for part in line.split(separator)]
        where = f"{path}, line {number}"
        if len(parts) < len(fields) or (len(parts) > len(fields) and not alternatives):
            expected = (" and a tab, " if separator == "\t" else separator).join(fields)
            raise DataError(f"{where}: {len(parts)} fields, expected {expected}; correct that line.")
        values = dict(zip(fields, parts, strict=False))
        rows.append(Row(where, {**values, "alternatives": [part for part in parts[len(fields) :] if part]}))
    return _check_rows(path, rows, fields)


def text_bytes(path: Path, max_bytes: int = -1) -> bytes:
    """Return the bytes of a file with at most `max_bytes`; -1: any number."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1 if max_bytes >= 0 else -1)
    except FileNotFoundError as error:
        raise DataError(f"The file {path} is missing; unpack the data set there.") from error
    except OSError as error:
        raise DataError(f"The file {path} cannot be read ({error.strerror}); check its permissions.") from error
    if 0 <= max_bytes < len(data):
        raise DataError(f"{path} has more than {max_bytes >> 10} KiB; download it again.")
    return data


def read_text(path: Path, max_bytes: int = -1) -> str:
    """Return the text of a file, which must be UTF-8; see `text_bytes`."""
    data = text_bytes(path, max_bytes).removeprefix(codecs.BOM_UTF8)
    if (zero := data.find(b"\0")) >= 0 and not data.startswith(UTF_16):
        raise DataError(f"{path} holds a zero byte in line {_line(data, zero)}, which no text does; save it as UTF-8.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        place = f"byte {error.start}, in line {_line(data, error.start)}"
        seems = "it seems to be UTF-16" if data.startswith(UTF_16) else place
        raise DataError(f"{path} is not UTF-8 ({seems}); save it as UTF-8.") from error


def _line(data: bytes, place: int) -> int:
    return 1 + data.count(b"\n", 0, place)


def _check_columns(path: Path, needed: Sequence[str], there: Sequence[str]) -> None:
    if missing := [column for column in needed if column not in there]:
        raise DataError(f"{path} has no column {missing[0]!r}; it needs the columns {', '.join(needed)}.")


def _check_rows(path: Path, rows: list[Row], keys: Iterable[str], bad: BadRows | None = None) -> list[Row]:
    """Return rows with clean texts; refuse a file without rows, and a row without one of the keys."""
    keys = tuple(keys)
    if not rows:
        if bad:
            bad.refuse_any(bad.count)
        raise DataError(f"{path} holds no record; put the data set's file there.")
    for row in map(_object, rows):
        for key in keys:
            if key not in row.values:
                raise DataError(f"{row.where}: the key {key!r} is missing; it needs {', '.join(keys)}.")
    return convert_rows(rows, clean_row, bad) if bad else [clean_row(row) for row in rows]


def clean_row(row: Row) -> Row:
    """Return a row with clean texts."""
    with reading(row):
        return Row(row.where, clean_values(row.values))


def _object(row: Row) -> Row:
    if not isinstance(row.values, dict):
        raise DataError(f"{row.where}: it is not a JSON object; correct that row.")
    return row


def table(root: Path, name: str) -> Path:
    """Return the file of a table, `NAME.csv.gz` as the owner publishes it, or else `NAME.csv`."""
    return either(root, f"{name}.csv.gz", f"{name}.csv", remedy="put the owners' table there")


def column_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the number of every row, the header being 1, and its values in two or more columns."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            yield from _rows(path, csv.reader(_lines(path, stream), strict=True), columns)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked; download it again.") from error
    except OSError as error:
        raise DataError(f"The file {path} cannot be read ({error.strerror}); check its permissions.") from error
    except csv.Error as error:
        raise DataError(f"{path} is not valid CSV ({error}); download it again.") from error


def _rows(path: Path, reader: Iterator[list[str]], columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    header = next(reader, [])
    _check_columns(path, columns, header)
    chosen = itemgetter(*map(header.index, columns))
    for number, record in enumerate(reader, 2):
        if len(record) == len(header):
            yield number, chosen(record)
        elif record:
            raise DataError(f"{path}, row {number}: it has fewer or more fields than the header; download it again.")


def _lines(path: Path, stream: IO[bytes] | gzip.GzipFile) -> Iterator[str]:
    """Yield the lines of a table, within the limits of its size and lines."""
    size = 0
    while line := stream.readline(MAX_LINE + 1):
        size += len(line)
        if len(line) > MAX_LINE or size > MAX_BYTES:
            raise DataError(
                f"{path} has more than {MAX_BYTES >> 20} MiB, or a line of more than {MAX_LINE >> 10} KiB; download "
                f"it again."
            )
        try:
            yield line.decode("utf-8-sig" if size == len(line) else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not UTF-8 (byte {size - len(line) + error.start}); save it as UTF-8."
            ) from error

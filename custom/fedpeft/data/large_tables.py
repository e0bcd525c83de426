# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read columns of a large CSV table row by row, packed with gzip or not.

Only the columns that are needed are kept, and no more than a line is in memory. A packed file can unpack to a thousand
times its size, so both the file and its lines have an upper limit.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import IO

from fedpeft.data.errors import DataError

MOST_BYTES = 2**29
MOST_LINE = 2**16
SUFFIXES = (".csv.gz", ".csv")


def table(root: Path, name: str) -> Path:
    """Return the file of a table, `NAME.csv.gz` or `NAME.csv`; of both the packed one, which the owner publishes.

    Raises:
        DataError: neither is there.
    """
    for suffix in SUFFIXES:
        if (path := root / f"{name}{suffix}").is_file():
            return path
    raise DataError(f"{root} holds neither '{name}.csv.gz' nor '{name}.csv'; put the owners' table there.")


def column_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the number of every row, the header being 1, and its values in two or more columns.

    Raises:
        DataError: the file cannot be read or unpacked, is no CSV table or too large, or lacks a column.
    """
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
    missing = [column for column in columns if column not in header]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}; it needs the columns {', '.join(columns)}.")
    chosen = itemgetter(*map(header.index, columns))
    for number, record in enumerate(reader, 2):
        if len(record) == len(header):
            yield number, chosen(record)
        elif record:
            raise DataError(f"{path}, row {number}: it has fewer or more fields than the header; download it again.")


def _lines(path: Path, stream: IO[bytes] | gzip.GzipFile) -> Iterator[str]:
    size = 0
    while line := stream.readline(MOST_LINE + 1):
        size += len(line)
        if len(line) > MOST_LINE or size > MOST_BYTES:
            raise DataError(
                f"{path} has more than {MOST_BYTES >> 20} MiB, or a line of more than {MOST_LINE >> 10} KiB; download "
                f"it again."
            )
        try:
            yield line.decode("utf-8-sig" if size == len(line) else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not UTF-8 (byte {size - len(line) + error.start}); save it as UTF-8."
            ) from error

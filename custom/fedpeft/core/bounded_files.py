# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read files of others, such as a run's folder that was downloaded or an export: bounded, and never waiting.

Opening a pipe waits for its other end, and a device such as /dev/zero never ends: only regular files are read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

MOST_BYTES = 128 * 2**20  # of JSON; a history of 200 rounds and 20 sites has about 20 MB
MOST_HASHED = 64 * 2**30  # of a file of tensors
MOST_DEPTH = 32
MOST_DIGITS = 19  # of a whole number: what fits into 64 bits
MOST_ENTRIES = 10_000  # of a folder


@contextmanager
def opened(file: Path, *, most: int) -> Iterator[BufferedReader]:
    """Yield a regular file of at most `most` bytes, opened for reading.

    Raises:
        OSError: it is missing, something else than a regular file, or too large.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        _check(os.fstat(descriptor), file, most)
        yield stream


def check_regular(file: Path, *, most: int = MOST_HASHED) -> Path:
    """Return the path of a regular file, for a library that opens it itself.

    Raises:
        OSError: as in `opened`.
    """
    _check(os.stat(file), file, most)
    return file


def check_folder(folder: Path, *, deep: bool = True) -> None:
    """Refuse a folder that holds anything but regular files and folders, or very many of them.

    Args:
        folder: whose entries others read by their names.
        deep: also what lies in its folders.

    Raises:
        OSError: names the entry.
    """
    count = 0
    for parent, folders, names in os.walk(folder, followlinks=True):
        count += len(folders) + len(names)
        if count > MOST_ENTRIES:
            raise OSError(errno.EFBIG, f"it has more than {MOST_ENTRIES:,} entries", str(folder))
        for name in names:
            with suppress(FileNotFoundError):  # a link that leads nowhere is not there
                check_regular(Path(parent, name))
        if not deep:
            return


def read_text(file: Path, *, most: int = MOST_BYTES) -> str:
    """Read a text.

    Raises:
        OSError: as in `opened`.
        ValueError: it is not UTF-8.
    """
    with opened(file, most=most) as stream:
        content = stream.read(most + 1)  # it may have grown
    if len(content) > most:
        raise _too_large(file, most)
    return content.decode("utf-8")


def read_json(file: Path, *, most: int = MOST_BYTES) -> Any:
    """Read JSON of bounded size, depth and whole numbers; NaN and infinite numbers are left to who reads it.

    Raises:
        OSError: as in `opened`.
        ValueError: it is something else.
    """
    return parse_json(read_text(file, most=most))


def parse_json(text: str) -> Any:
    """Decode JSON of bounded depth and whole numbers.

    Raises:
        ValueError: it is something else.
    """
    try:
        value = json.loads(text, parse_int=_whole)
    except RecursionError:
        raise _too_deep() from None
    _check_depth(value)
    return value


def digest(file: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        OSError: as in `opened`.
    """
    with opened(file, most=MOST_HASHED) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check(found: os.stat_result, file: Path, most: int) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(file))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe, device or socket, not a regular file", str(file))
    if found.st_size > most:
        raise _too_large(file, most)


def _too_large(file: Path, most: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(file))


def _too_deep() -> ValueError:
    return ValueError(f"it is nested too deeply, at most {MOST_DEPTH} levels are read")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, list | dict)
            for inner in (one.values() if isinstance(one, Mapping) else one)
        ]
        if not level:
            return
    raise _too_deep()


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"the number {text[:20]}... has more than {MOST_DIGITS} digits")
    return int(text)

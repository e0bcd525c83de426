# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Write files completely or not at all, even if the process dies, and read those of others within bounds.

Each is written as a draft beside its final path, `.<name>.<process id>.draft`, and renamed when it is complete. Drafts
of a dead process are removed by the next process that writes there.

Only regular files are read, so that reading a downloaded run or an export never waits: opening a pipe waits for its
other end, and a device such as /dev/zero never ends.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from fedpeft.core.errors import LocalError

SET_ASIDE = "set-aside"
DISK_FULL = "disk-full"  # the code that a site reports to the server
SECONDS_OF_DOUBT = 2.0  # file times and process times come from two clocks
_OS_ERROR = re.compile(r"\(os error (\d{1,3})\)")
_LEFTOVER = re.compile(r"\..+\.(\d{1,9})\.(?:draft|dropped)")
_ROUND = re.compile(r"round-\d{5,9}")


def round_name(number: int) -> str:
    """Return the name of the folder of a round, counted from 1, in the state of a site or a server."""
    return f"round-{number:05d}"


def rounds_in(folder: Path) -> list[Path]:
    """Return the folders of rounds, the newest last, without anything that was put beside them, such as a copy."""
    return sorted((path for path in folder.glob("round-*") if _ROUND.fullmatch(path.name)), key=number_of)


def number_of(path: Path) -> int:
    """Return the number of a round's folder."""
    return int(path.name.removeprefix("round-"))


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield the path of a draft, file or folder, that replaces `path` at the end; an error leaves `path` unchanged.

    A `private` one is an empty file that only its own account can read: it gets what must not leave a site.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        _remove(draft)
        if private:
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield draft
        if path.is_dir():
            if not draft.is_dir():
                raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
            drop(path)
        draft.replace(path)
    except (OSError, SafetensorError) as error:
        _remove(draft)
        raise unwritable(path, error) from error
    except BaseException:
        _remove(draft)
        raise


def unwritable(path: Path, error: Exception) -> LocalError:
    """Return the error for a path that cannot be written; its code is what others may learn."""
    reason = getattr(error, "strerror", None) or error
    remedy = "make room on its disk" if is_full(error) else "let this user write there"
    return LocalError(f"{path} cannot be written ({reason}): {remedy}.", code=code_of(error))


def code_of(error: Exception) -> str:
    """Return the code that a site reports to the server for a file that it cannot write."""
    return DISK_FULL if is_full(error) else "disk-unwritable"


def is_full(error: BaseException) -> bool:
    """Return whether an error says that a disk, quota or size limit is used up; safetensors has only a text for it."""
    number = getattr(error, "errno", None)
    if number is None and (match := _OS_ERROR.search(str(error))):
        number = int(match[1])
    return number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def temporary_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield a new folder, which is removed at the end, or by the next process that writes there if this one dies."""
    folder = parent / f".{name}.{os.getpid()}.draft"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(parent)
        _remove(folder)
        folder.mkdir()
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        yield folder
    finally:
        _remove(folder)


@contextlib.contextmanager
def own_folder(prefix: str) -> Iterator[str]:
    """Yield a private temporary folder, which is removed at the end, or by the next process if this one dies."""
    remove_leftovers(Path(tempfile.gettempdir()), f"{prefix}*")
    try:
        made = tempfile.TemporaryDirectory(prefix=prefix, suffix=f".{os.getpid()}.draft")
    except OSError as error:
        raise unwritable(Path(tempfile.gettempdir()), error) from error
    with made as folder:
        yield folder


def drop(folder: Path) -> None:
    """Remove a folder in one step, so that it is never there in part; a missing folder is not an error."""
    dropped = folder.with_name(f".{folder.name}.{os.getpid()}.dropped")
    remove_leftovers(folder.parent)
    _remove(dropped)
    with contextlib.suppress(FileNotFoundError):
        folder.replace(dropped)
        _remove(dropped)


def append(stream: IO[Any], text: str) -> None:
    """Append a text to an open file completely or not at all: half a line would make the file unusable.

    It passes by the stream's own buffer, which would write what is left of the text when the stream is closed.
    """
    file = stream.fileno()
    end, rest = os.fstat(file).st_size, text.encode()
    try:
        while rest:
            rest = rest[os.pwrite(file, rest, os.fstat(file).st_size) :]
        os.fsync(file)
    except OSError:
        os.ftruncate(file, end)
        raise


def set_aside(path: Path) -> None:
    """Move a round's state to a folder that no job reads; nothing is removed."""
    aside = path.parent / SET_ASIDE
    aside.mkdir(exist_ok=True)
    os.utime(path)
    path.rename(aside / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{time.monotonic_ns()}-{path.name}")


def set_aside_after(folder: Path, round: int) -> None:
    """Set aside the states in a lineage's folder that are newer than a round."""
    for path in rounds_in(folder):
        if number_of(path) > round:
            set_aside(path)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that readers see either complete or not at all."""
    with replacing(path) as draft:
        draft.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")


def follow_umask(file: Path) -> None:
    """Give a file the mode of any new file beside it; safetensors writes files that only their owner can read.

    Only for files that are handed over, not for those that a site keeps.
    """
    new = file.with_name(f".{file.name}.{os.getpid()}.draft")  # os.umask reads the mask only by changing it
    try:
        new.touch()
        shutil.copymode(new, file)
    finally:
        _remove(new)


def remove_leftovers(folder: Path, names: str = ".*") -> None:
    """Remove the drafts of dead processes in a folder, or those of these names alone."""
    for path in folder.glob(names):
        match = _LEFTOVER.fullmatch(path.name)
        if match and not _is_alive(int(match[1]), path):
            _remove(path)


def _is_alive(pid: int, draft: Path) -> bool:
    """Return whether the process that made a draft still runs; a process that started later only has the same id."""
    import psutil

    try:
        process = psutil.Process(pid)
        early = process.create_time() <= draft.stat().st_mtime + SECONDS_OF_DOUBT
        return early and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False
    except psutil.Error:
        return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


MAX_BYTES = 128 * 2**20  # of JSON
MAX_HISTORY = 2**30  # of the JSON that a run writes; 200 rounds of 100 sites with aligned adapters take 120 MB
MAX_HASHED = 64 * 2**30  # of a file of tensors
MAX_DEPTH = 32
MAX_DIGITS = 19  # of a whole number: what fits into 64 bits
MAX_ENTRIES = 10_000  # of a folder


@contextmanager
def opened(file: Path, *, max_bytes: int) -> Iterator[BufferedReader]:
    """Yield a regular file of at most `max_bytes` bytes, opened for reading."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        _check_file(os.fstat(descriptor), file, max_bytes)
        yield stream


def check_regular(file: Path, *, max_bytes: int = MAX_HASHED) -> Path:
    """Return the path of a regular file, for a library that opens it itself."""
    _check_file(os.stat(file), file, max_bytes)
    return file


def check_folder(folder: Path, *, deep: bool = True) -> None:
    """Refuse a folder that holds anything but regular files and folders, or very many of them."""
    count = 0
    for parent, folders, names in os.walk(folder, followlinks=True):
        count += len(folders) + len(names)
        if count > MAX_ENTRIES:
            raise OSError(errno.EFBIG, f"it has more than {MAX_ENTRIES:,} entries", str(folder))
        for name in names:
            with suppress(FileNotFoundError):  # a link that leads nowhere is not there
                check_regular(Path(parent, name))
        if not deep:
            return


def read_text(file: Path, *, max_bytes: int = MAX_BYTES, errors: str = "strict") -> str:
    """Read a UTF-8 text of bounded size; `errors`: as of `bytes.decode`."""
    with opened(file, max_bytes=max_bytes) as stream:
        content = stream.read(max_bytes + 1)  # it may have grown
    if len(content) > max_bytes:
        raise _too_large(file, max_bytes)
    return content.decode("utf-8", errors)


def read_json(file: Path, *, max_bytes: int = MAX_BYTES, by_hand: bool = False) -> Any:
    """Read JSON of bounded size, depth and whole numbers; NaN and infinite numbers are left to the caller.

    `by_hand`: people write this file, so a repeated name is an error.
    """
    return parse_json(read_text(file, max_bytes=max_bytes), by_hand=by_hand)


def parse_json(text: str, *, by_hand: bool = False) -> Any:
    """Decode JSON of bounded depth and whole numbers; see `read_json`."""
    try:
        value = json.loads(text, parse_int=_whole_number, object_pairs_hook=_unique_names if by_hand else None)
    except RecursionError:
        raise _too_deep() from None
    _check_depth(value)
    return value


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice!r:.80} stands twice")
    return found


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with opened(file, max_bytes=MAX_HASHED) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_file(found: os.stat_result, file: Path, max_bytes: int) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(file))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe, device or socket, not a regular file", str(file))
    if found.st_size > max_bytes:
        raise _too_large(file, max_bytes)


def _too_large(file: Path, max_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes", str(file))


def _too_deep() -> ValueError:
    return ValueError(f"it is nested too deeply, at most {MAX_DEPTH} levels are read")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, list | dict)
            for inner in (one.values() if isinstance(one, Mapping) else one)
        ]
        if not level:
            return
    raise _too_deep()


def _whole_number(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"the number {text[:20]}... has more than {MAX_DIGITS} digits")
    return int(text)

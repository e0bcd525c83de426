# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read the files of a job from a folder or a zip archive: exactly the expected ones.

FLARE searches subfolders for a configuration and accepts `.conf`, `.yml` and `*.default` too, so that any additional
file could be the one that it reads.
"""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from fedpeft.job.admission.strict_json import MAX_BYTES, AdmissionError, short

MAX_ARCHIVE = 4 << 20
MAX_ENTRIES = 32
SIGNATURES = (".__nvfl_sig.json", ".__nvfl_submitter.crt")  # FLARE puts these into every folder of a submitted job
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1


def read_folder(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Read the named files of a folder.

    Args:
        folder: the job's.
        names: required paths below it, with `/`.

    Raises:
        AdmissionError: a file is missing or too large, or the folder has other files.
    """
    contents: dict[str, bytes] = {}
    folders, signatures = _folders(names), _signatures(names)
    for below in sorted(folders):
        inside = folder / below
        if not inside.is_dir():
            raise AdmissionError(f"{inside} is missing: write the job again with `fedpeft jobs`.", reason="file")
        with os.scandir(inside) as entries:
            for entry in entries:
                name = str(PurePosixPath(below) / entry.name)
                known = (entry.is_file() and name in (*names, *signatures)) or (entry.is_dir() and name in folders)
                if entry.is_symlink() or not known:
                    raise AdmissionError(f"{entry.path} does not belong to a job of fedpeft: remove it.", reason="file")
                if name in names:
                    contents[name] = _read_file(Path(entry.path))
    return _complete(contents, names, str(folder))


def read_archive(data: bytes, names: Sequence[str], *, root: str = "") -> dict[str, bytes]:
    """Read the named files of a zip archive.

    Args:
        data: the archive.
        names: required paths below `root`, with `/`.
        root: the folder in the archive that holds the job.

    Raises:
        AdmissionError: it is not a plain archive, a file is missing, or it has other files.
    """
    prefix = f"{root}/" if root else ""
    files = {f"{prefix}{name}": name for name in names}
    others = {f"{prefix}{name}" for name in _signatures(names)}
    folders = {f"{prefix}{name}/" for name in _folders(names) if name != "."} | {prefix}
    entries = _entries(data)
    for name in entries:
        if name not in files and name not in others and name not in folders:
            raise AdmissionError(f"{short(name)} does not belong to a job of fedpeft: remove it.", reason="file")
    contents = {files[name]: content for name, content in entries.items() if name in files}
    return _complete(contents, names, root or "the archive")


def check_archive(data: bytes) -> None:
    """Refuse an archive that cannot be unpacked safely.

    Raises:
        AdmissionError: it is not a plain archive, or larger than a job can be.
    """
    _entries(data)


def _entries(data: bytes) -> dict[str, bytes]:
    if not isinstance(data, bytes) or len(data) > MAX_ARCHIVE:
        raise AdmissionError(
            f"the job's archive must have at most {MAX_ARCHIVE} bytes: send a job of fedpeft.", reason="archive"
        )
    contents: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(archive.infolist()) > MAX_ENTRIES:
                raise AdmissionError(
                    f"the job's archive has more than {MAX_ENTRIES} entries: send a job of fedpeft.", reason="archive"
                )
            for entry in archive.infolist():
                if entry.filename in contents:
                    raise AdmissionError(f"{short(entry.filename)} is there twice: send it again.", reason="archive")
                contents[entry.filename] = _read_entry(archive, entry)
    except AdmissionError:
        raise
    except Exception as error:  # zipfile raises many kinds of exceptions on damaged archives
        raise AdmissionError(
            f"the job's archive is damaged ({short(error)}): send it again.", reason="archive"
        ) from error
    return contents


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    plain = kind == 0 or kind == (stat.S_IFDIR if entry.is_dir() else stat.S_IFREG)
    if (
        entry.flag_bits & _ENCRYPTED
        or entry.compress_type not in _PLAIN
        or entry.filename != entry.orig_filename
        or not plain
    ):
        raise AdmissionError(
            f"{short(entry.filename)} is not a plain entry of a zip archive: send it again.", reason="archive"
        )
    limit = 0 if entry.is_dir() else MAX_BYTES
    if entry.file_size <= limit:
        with archive.open(entry) as stream:
            content = stream.read(limit + 1)  # the declared size may be wrong
        if len(content) == entry.file_size:
            return content
    raise AdmissionError(f"{short(entry.filename)} is too large: make it at most {MAX_BYTES} bytes.", reason="limit")


def _read_file(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise AdmissionError(f"{file} cannot be read ({error.strerror}): restore it.", reason="file") from error
    if len(content) > MAX_BYTES:
        raise AdmissionError(f"{file} is too large: make it at most {MAX_BYTES} bytes.", reason="limit")
    return content


def _complete(contents: dict[str, bytes], names: Sequence[str], where: str) -> dict[str, bytes]:
    if missing := [name for name in names if name not in contents]:
        raise AdmissionError(f"{where} lacks {missing[0]}: write the job again with `fedpeft jobs`.", reason="file")
    return contents


def _folders(names: Sequence[str]) -> set[str]:
    return {str(folder) for name in names for folder in PurePosixPath(name).parents}


def _signatures(names: Sequence[str]) -> set[str]:
    return {str(PurePosixPath(folder) / name) for folder in _folders(names) for name in SIGNATURES}

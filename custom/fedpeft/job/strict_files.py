# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Read a job's files, from a folder or a zip archive: exactly the expected ones, and strict JSON of bounded size.

FLARE searches subfolders for a configuration and accepts `.conf`, `.yml` and `*.default` too, so that any additional
file could be the one that it reads. It also expands texts with braces, so no text may hold one.

Why a job is not admitted is a code of a fixed list for others, with the declared name of a setting (`section.name`),
and the full message for this machine's log.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
import stat
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import is_number

REASONS = {
    "archive": "it is not a plain zip archive of a bounded size",
    "file": "it holds a file that no job has, or lacks one",
    "json": "a file in it is not strict JSON",
    "limit": "a file in it is too large or nested too deeply",
    "variable": "a text in it holds a brace, which FLARE would read as a variable",
    "text": "a text in it is too long or holds control characters",
    "shape": "it holds a setting that no job has",
    "class": "it names a class that a job may not load",
    "meta": "its meta.json holds what no job may ask for",
    "setting": "the value of a setting in it is not allowed",
}
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # FLARE takes what follows a dot for a part below the site
MAX_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_TEXT = 4096
MAX_NUMBER = 2**63
# FLARE treats `{x}` as a variable, and `}x}` too: it splits at either brace
BRACES = "{}"
LINE_BREAKS = "\n\t"
MAX_ARCHIVE = 4 << 20
MAX_ARCHIVED = 32
SIGNATURES = (".__nvfl_sig.json", ".__nvfl_submitter.crt")  # FLARE puts these into every folder of a submitted job
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1


class AdmissionError(FedpeftError):
    """A job that is not admitted, for one of the `REASONS`."""

    def __init__(self, sentence: str, *, reason: str, setting: str = "") -> None:
        super().__init__(sentence, setting=setting)
        self.reason = reason

    @property
    def public(self) -> str:
        """The message for others: code, fixed sentence and the name of a setting, without values of job or machine."""
        name = declared_part(self.setting) if self.setting else ""
        place = "`fedpeft doctor` on its folder names the place"
        return f"the job is not admitted ({self.reason}): {REASONS[self.reason]}{f', {name}' * bool(name)}; {place}."


def setting_classes() -> dict[str, type]:
    """Return the sections of a job, and their parts, with the dataclass that declares their settings."""
    from fedpeft.alignment.settings import PIASettings, RobustSettings
    from fedpeft.answering.training_settings import TrainingSettings
    from fedpeft.backbones import BackboneSettings
    from fedpeft.data import DataSettings
    from fedpeft.job.composing import FlareSettings
    from fedpeft.job.federation import FederationSettings
    from fedpeft.methods.settings import MethodSettings
    from fedpeft.scheduling.settings import ScheduleSettings

    return {
        "backbone": BackboneSettings,
        "method": MethodSettings,
        "method.pia": PIASettings,
        "method.robust": RobustSettings,
        "training": TrainingSettings,
        "data": DataSettings,
        "schedule": ScheduleSettings,
        "federation": FederationSettings,
        "flare": FlareSettings,
    }


@cache
def setting_names() -> frozenset[str]:
    """Return every section and every setting in it that a dataclass declares."""
    declared = setting_classes()
    fields = {f"{section}.{field.name}" for section, cls in declared.items() for field in dataclasses.fields(cls)}
    return frozenset(fields | set(declared) | {"backbone.sites", "data.sites"})


def declared_part(path: str) -> str:
    """Return the longest declared prefix of a path, or an empty text: names below it are chosen by the job.

    Of `method.settings.houlsby.width` it is `method.settings`.
    """
    parts = path.split(".")
    candidates = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((candidate for candidate in candidates if candidate in setting_names()), "")


def parse_json(data: bytes, file: str) -> dict[str, Any]:
    """Read one JSON object."""
    if len(data) > MAX_BYTES:
        raise AdmissionError(f"{file} has {len(data)} bytes: make it at most {MAX_BYTES}.", reason="limit")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_bounded,
        )
    except RecursionError:
        raise AdmissionError(f"{file} is nested too deeply: use at most {MAX_DEPTH} levels.", reason="limit") from None
    except ValueError as error:
        raise AdmissionError(
            f"{file} cannot be read as JSON ({error}): write the job again with `fedpeft jobs`.", reason="json"
        ) from error
    if not isinstance(value, dict):
        raise AdmissionError(
            f"{file} holds {type(value).__name__}, not an object: write the job again with `fedpeft jobs`.",
            reason="json",
        )
    check_texts(value, file)
    return value


def check_texts(value: Any, where: str, depth: int = 0) -> None:
    """Refuse braces, control characters and excessive length in every text, keys included, and excessive depth."""
    if depth > MAX_DEPTH:
        raise AdmissionError(f"{where} is nested too deeply: use at most {MAX_DEPTH} levels.", reason="limit")
    if isinstance(value, str):
        _check_text(value, where, allowed=LINE_BREAKS)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(key, str):
                _check_text(key, f"a key of {where}", allowed="")
            check_texts(inner, f"{where}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            check_texts(inner, f"{where}[{number}]", depth + 1)


def short(value: Any, limit: int = 80) -> str:
    """Format a value for a message: one printable line of at most `limit` characters."""
    text = ascii(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _check_text(text: str, where: str, *, allowed: str) -> None:
    if len(text) > MAX_TEXT:
        raise AdmissionError(f"{where} has {len(text)} characters: use at most {MAX_TEXT}.", reason="text")
    if any(brace in text for brace in BRACES):
        raise AdmissionError(
            f"{where} is {short(text)}, and FLARE would read a brace as a variable: write the value without braces.",
            reason="variable",
        )
    if not all(character.isprintable() or character in allowed for character in text):
        raise AdmissionError(f"{where} is {short(text)}: write it without control characters.", reason="text")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"the key {short(name)} is there twice")
        result[name] = value
    return result


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{short(text)} is too large")
    return number


def _bounded(text: str) -> int:
    number = int(text)
    if abs(number) >= MAX_NUMBER:
        raise ValueError(f"{short(text)} is too large")
    return number


def check_keys(
    value: Any, known: Iterable[str] | None, where: str, *, required: Sequence[str] = (), reason: str = "shape"
) -> None:
    """Refuse anything but an object with known keys (None: any) and all required ones."""
    if not isinstance(value, dict):
        raise AdmissionError(f"{where} is {short(value)}: make it an object.", reason=reason)
    if known is not None and (unknown := [key for key in value if key not in known]):
        raise AdmissionError(f"{where} has {short(unknown[0])}, an unexpected key: remove it.", reason=reason)
    if missing := [key for key in required if key not in value]:
        raise AdmissionError(f"{where} lacks {missing[0]!r}: write the job again with `fedpeft jobs`.", reason=reason)


def check_list(value: Any, file: str, name: str, length: int | None = None) -> list[Any]:
    """Return the value if it is a list, of `length` entries unless that is None."""
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise wrong(file, name, value, "a list" if length is None else "a list of one entry", reason="shape")
    return value


def is_count(value: Any, maximum: float) -> bool:
    """Return whether a value is a number from 0 to `maximum`."""
    return is_number(value) and 0 <= value <= maximum


def wrong(file: str, name: str, value: Any, expected: str, reason: str = "meta") -> AdmissionError:
    """Return the error for one value, with the expected one."""
    return AdmissionError(f"{file}: {name} is {short(value)}: make it {expected}.", reason=reason)


def read_folder(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Read the named files of a folder."""
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
    """Read the named files of a zip archive."""
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
    """Refuse an archive that cannot be unpacked safely."""
    _entries(data)


def _entries(data: bytes) -> dict[str, bytes]:
    if not isinstance(data, bytes) or len(data) > MAX_ARCHIVE:
        raise AdmissionError(
            f"the job's archive must have at most {MAX_ARCHIVE} bytes: send a job of fedpeft.", reason="archive"
        )
    contents: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(archive.infolist()) > MAX_ARCHIVED:
                raise AdmissionError(
                    f"the job's archive has more than {MAX_ARCHIVED} entries: send a job of fedpeft.", reason="archive"
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

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check parsed JSON for the expected keys, lists and numbers; each error names the place and the value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedpeft.job.admission.refusal import AdmissionError
from fedpeft.job.admission.strict_json import short


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


def is_whole(value: Any) -> bool:
    """Whether it is an integer and not a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_count(value: Any, maximum: float) -> bool:
    """Whether it is a number from 0 to `maximum`."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= maximum


def wrong(file: str, name: str, value: Any, expected: str, reason: str = "meta") -> AdmissionError:
    """The error for one value, with the expected one."""
    return AdmissionError(f"{file}: {name} is {short(value)}: make it {expected}.", reason=reason)

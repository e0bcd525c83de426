# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check values of a decoded JSON file; `where` and `what` go into the error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from fedpeft.core.errors import FedpeftError
from fedpeft.core.printable import one_line, printable

MOST_NAME = 200  # characters
MOST_COUNT = 10**15
MOST = 1e39  # beyond what a number of 32 bits holds; larger ones are in no run, and cannot be drawn
MOST_SECONDS = 1e9


class HistoryError(FedpeftError):
    """A history.json is missing, damaged or incomplete."""


def need(entry: Mapping[str, Any], key: str, where: str) -> Any:
    """Return the value of a required key."""
    if key not in entry:
        raise HistoryError(f"{where}: {key!r} is missing; the file is incomplete; copy it from the run again.")
    return entry[key]


def as_mapping(value: Any, where: str, what: str) -> Mapping[str, Any]:
    """Return a value that must be a JSON object."""
    return value if isinstance(value, Mapping) else fail(where, what, value, "a JSON object")


def as_number(value: Any, where: str, what: str, *, low: float = 0, high: float = MOST) -> float | None:
    """Return a value that must be a finite number from low to high, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        fail(where, what, value, "a number or null")
    if not low <= value <= high:
        fail(where, what, value, f"a {'fraction' if high == 1 else 'finite number'} from {low:g} to {high:g} or null")
    return float(value)


def as_count(value: Any, where: str, what: str) -> int:
    """Return a value that must be a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_COUNT:
        fail(where, what, value, f"a whole number from 0 to {MOST_COUNT:,}")
    return value


def as_name(value: Any, where: str, what: str) -> str:
    """Return a value that must be a text that is not empty and has no control characters."""
    if not isinstance(value, str) or not value.strip() or printable(value, most=MOST_NAME) != value or "\n" in value:
        fail(where, what, value, "a text that is not empty, not too long, and has no control characters")
    return value


def as_sentence(value: Any, where: str, what: str) -> str:
    """Return a text on one line, without control characters."""
    # a reason may hold another program's message
    return one_line(value) if isinstance(value, str) else fail(where, what, value, "a text")


def fail(where: str, what: str, value: Any, allowed: str) -> NoReturn:
    """Raise a HistoryError that names place, value and what is allowed."""
    shown = one_line(repr(value))
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    raise HistoryError(f"{where}: {what} is {shown} but must be {allowed}; correct it or copy the file again.")

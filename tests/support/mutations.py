# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A JSON file of a stranger: each of its values in turn replaced by one that no run has."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

DIGITS = "@401 digits@"
TERMINAL = "\x1b[2J\x1b]0;owned\x07a\rb\u202ec\u200bd\x9b31m"
VALUES = {
    "null": None,
    "true": True,
    "below 0": -1,
    "64 bits": 2**64,
    "401 digits": DIGITS,
    "1e308": 1e308,
    "nan": float("nan"),
    "infinite": float("inf"),
    "empty text": "",
    "terminal codes": TERMINAL,
    "two lines": "a\nfedpeft: complete",
    "long text": "x" * 200_000,
    "list": [],
    "object": {},
    "list of a list": [[1]],
    "deep": [],  # filled below
}
deep: Any = 0
for _ in range(60):
    deep = [deep]
VALUES["deep"] = deep


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a decoded file, the whole file first."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> str:
    """The file's text with another value at a path."""
    if not path:
        return text(other)
    made = copy.deepcopy(value)
    inside = made
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = other
    return text(made)


def renamed(value: Any, path: tuple[Any, ...], name: str) -> str:
    """The file's text with another name for the entry at a path."""
    made = copy.deepcopy(value)
    inside = made
    for key in path[:-1]:
        inside = inside[key]
    inside[name] = inside.pop(path[-1])
    return text(made)


def text(value: Any) -> str:
    """JSON, with the number that Python refuses to write."""
    return json.dumps(value).replace(f'"{DIGITS}"', "9" * 401)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Parse JSON of bounded size and depth, without duplicate keys, NaN, or a text that FLARE would expand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from fedpeft.job.admission.refusal import AdmissionError

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_TEXT = 4096
MAX_NUMBER = 2**63
# FLARE treats `{x}` as a variable, and `}x}` too: it splits at either brace
BRACES = "{}"
LINE_BREAKS = "\n\t"


def parse(data: bytes, file: str) -> dict[str, Any]:
    """Read one JSON object.

    Args:
        data: the file's bytes.
        file: its name, for the message.

    Raises:
        AdmissionError: it is too large, not UTF-8, not a JSON object, or refused by `check_texts`.
    """
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
    """Refuse braces, control characters and excessive length in every text, keys included, and excessive depth.

    Args:
        value: parsed JSON.
        where: name of the value in messages; keys are appended.
        depth: number of levels above it.

    Raises:
        AdmissionError: names the text and its place.
    """
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
        raise AdmissionError(
            f"{where} has {len(text)} characters: use at most {MAX_TEXT}.",
            reason="text",
        )
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

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Files of results with one JSON object on each line, so that a run that ends early loses nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read(file: Path) -> list[dict[str, Any]]:
    """The lines of a file, without one that was not written to its end; none of a file that is not there."""
    return [json.loads(line) for line in _whole(file.read_text()).splitlines()] if file.exists() else []


def append(file: Path, line: Mapping[str, Any]) -> None:
    """Write one more line, in place of one that was not written to its end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = file.read_text() if file.exists() else ""
    if text != (whole := _whole(text)):
        file.write_text(whole)
    with file.open("a") as lines:
        lines.write(json.dumps(line) + "\n")


def _whole(text: str) -> str:
    """The lines that were written to their end, each with a line break; an editor may have taken it from the last."""
    last = text.rpartition("\n")[2]
    try:
        json.loads(last)
    except ValueError:
        return text[: len(text) - len(last)]
    return f"{text}\n"

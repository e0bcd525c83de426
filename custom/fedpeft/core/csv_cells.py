# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Texts of others as cells of a CSV file that no spreadsheet computes."""

from __future__ import annotations

from typing import Any

COMPUTED = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet would compute


def csv_cell(value: Any) -> Any:
    """Return a value as it is, a text that a spreadsheet would compute with an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(COMPUTED) else value

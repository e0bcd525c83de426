# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A table as text; terminal, Markdown and page lay it out."""

from __future__ import annotations

from dataclasses import dataclass

MEAN = "mean"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A title, the heads of the columns, the rows and a line that explains the marks; the first column holds names.

    The last `averages` rows are means, where they are called so. In a `shaded` table a low figure
    stands on a dark ground.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: str
    averages: int = 1
    shaded: bool = False

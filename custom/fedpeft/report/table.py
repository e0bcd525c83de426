# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A table as text; terminal, Markdown and page lay it out."""

from __future__ import annotations

from dataclasses import dataclass

MEAN, WEIGHTED = "mean", "weighted mean"
AVERAGED = (MEAN, WEIGHTED)
SHADES = 5


@dataclass(frozen=True, kw_only=True)
class Table:
    """A title, the heads of the columns, the rows and a line that explains the marks; the first column holds names.

    The last `averages` rows are means, where they are called so. `shades` has for each row the ground of its figures,
    from 0, the darkest, to SHADES - 1. `best` holds (row, column) of figures that stand out.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: str
    averages: int = 1
    shades: tuple[tuple[int, ...], ...] = ()
    best: frozenset[tuple[int, int]] = frozenset()

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A table of results, for the terminal and for a page."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True)
class ResultTable:
    """Rows of results; the first column names the row, the others have figures.

    Args:
        title: what the rows have in common.
        heads: of the columns.
        rows: as many texts as `heads`, or fewer: the last ones are empty.
    """

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def table(self) -> Table:
        """For the terminal."""
        table = Table(title=self.title or None, box=None, title_justify="left", header_style="bold")
        for number, name in enumerate(self.heads):
            table.add_column(name, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """For a page, without the title."""
        lines = [self.heads, ("---", *["---:"] * (len(self.heads) - 1)), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def section(self) -> str:
        """For a page, with the title before it."""
        return f"{self.title}:\n\n{self.markdown()}"

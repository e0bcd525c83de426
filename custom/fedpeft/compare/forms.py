# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The forms of a comparison's table: terminal, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from fedpeft.console import cell

GAP, EDGES = 2, 2  # letters between columns and beside the table of the terminal
_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"}
_LATEX |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_LATEX |= {"–": "--", "±": "$\\pm$", "†": "$\\dagger$"}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A table as text: `best` holds (row, column) of the highest figures; `notes` stand below it.

    The columns behind the first are `sites` sites. `values` are the columns of the CSV: a head, and a name, a number or
    None in each row.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]]
    notes: tuple[str, ...]
    sites: int = 0
    values: tuple[tuple[str, tuple[str | float | None, ...]], ...] = ()

    def grid(self, width: int) -> Grid:
        """For a terminal of this width; without room for all columns the last sites stand in the files only."""
        others = [column for column in range(len(self.columns)) if not 1 <= column <= self.sites]
        room = width - EDGES - sum(self._width(column) for column in others)
        fits, sites = room >= 0, list[int]()
        for column in range(1, 1 + self.sites):
            if (room := room - self._width(column)) < 0:
                break
            sites.append(column)
        shown = sorted([*others, *sites])
        left_out = f"{self.sites - len(sites)} of {self.sites} sites are left out here; the files have all."
        grid = Grid(
            box=box.SIMPLE_HEAD,
            title=Text(self.title, style="bold"),
            title_justify="left",
            caption=Text(left_out) if len(sites) < self.sites else None,
            caption_justify="left",
            padding=(0, GAP - 1, 0, 0),
            pad_edge=False,
        )
        for column in shown:
            grid.add_column(
                cell(self.columns[column]),
                justify="right" if column else "left",
                vertical="bottom",
                overflow="fold",
                width=min(self._width(column) - GAP, width // 2) if fits or not column else None,
            )
        for r, row in enumerate(self.rows):
            grid.add_row(*(cell(row[c], style="bold" if (r, c) in self.best else "") for c in shown))
        return grid

    def _width(self, column: int) -> int:
        head = max(map(len, self.columns[column].split()))
        return max(head, *(len(row[column]) for row in self.rows)) + GAP

    def markdown(self) -> str:
        """For a page or a README."""
        rule = [":---", *["---:"] * (len(self.columns) - 1)]
        rows = [
            [f"**{_plain(cell)}**" if (r, c) in self.best else _plain(cell) for c, cell in enumerate(row)]
            for r, row in enumerate(self.rows)
        ]
        lines = ["| " + " | ".join(row) + " |" for row in ([_plain(name) for name in self.columns], rule, *rows)]
        return "\n".join([f"## {_plain(self.title)}", "", *lines, "", *(f"{note}  " for note in self.notes)]) + "\n"

    def csv(self) -> str:
        """For a spreadsheet: every column but the first has numbers alone, or nothing."""
        file = io.StringIO()
        rows = zip(*(column for _, column in self.values), strict=True)
        csv.writer(file, lineterminator="\n").writerows([[head for head, _ in self.values], *rows])
        return file.getvalue()

    def latex(self) -> str:
        """For a paper, with the package booktabs."""
        rows = [
            " & ".join(
                f"\\textbf{{{_latex(cell)}}}" if (r, c) in self.best else _latex(cell) for c, cell in enumerate(row)
            )
            for r, row in enumerate(self.rows)
        ]
        heads = " & ".join(map(_latex, self.columns))
        body = " \\\\\n".join(rows)
        form = "l" + "r" * (len(self.columns) - 1)
        notes = "".join(f"% {note}\n" for note in self.notes)
        return (
            f"% {self.title}\n{notes}\\begin{{tabular}}{{{form}}}\n\\toprule\n{heads} \\\\\n\\midrule\n"
            f"{body} \\\\\n\\bottomrule\n\\end{{tabular}}\n"
        )


def _plain(text: str) -> str:
    return re.sub(r"([\\`*|<>])", r"\\\1", text)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)

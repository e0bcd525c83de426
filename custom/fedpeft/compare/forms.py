# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The forms of a comparison's table: terminal, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.table import Table as Grid
from rich.text import Text

from fedpeft.core.console import cell

Cells = tuple[tuple[str, ...], ...]  # a row of heads, then the others
GAP, EDGES = 2, 2  # letters between columns and beside the table of the terminal
_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"}
_LATEX |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_LATEX |= {"–": "--", "±": "$\\pm$", "†": "$\\dagger$"}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A table as text: `best` holds (row, column) of the highest figures; `notes` stand below it.

    `values` are the columns of the CSV: a head, and a name, a number or None in each row.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]]
    notes: tuple[str, ...]
    values: tuple[tuple[str, tuple[str | float | None, ...]], ...] = ()

    def grids(self, width: int) -> list[Grid]:
        """For a terminal of this width: with methods as columns where it is too narrow, in several grids if need be."""
        cells = (self.columns, *self.rows)
        bold = {(row + 1, column) for row, column in self.best}
        if sum(_widths(cells, width)) + EDGES > width:
            cells, bold = tuple(zip(*cells, strict=True)), {(column, row) for row, column in bold}
        title = Text(self.title, style="bold")
        wide = _widths(cells, width)
        return [
            _grid(cells, wide, bold, block, title if not n else None) for n, block in enumerate(_blocks(wide, width))
        ]

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


def _widths(cells: Cells, width: int) -> list[int]:
    """Return how wide each column is, the gap behind it included, at most half the terminal.

    Heads are folded between words, and figures before the number of their seeds.
    """
    widths = []
    for number, (head, *column) in enumerate(zip(*cells, strict=True)):
        parts = [part for text in column for part in (text.replace(", ", ",\n").splitlines() if number else [text])]
        widths.append(min(max(map(cell_len, [*head.split(), *parts])), width // 2) + GAP)
    return widths


def _blocks(widths: list[int], width: int) -> list[list[int]]:
    """Return the columns of each grid; the first, which names the rows, is in every one."""
    first, *others = widths
    blocks, room = [[0]], width - EDGES - first
    for column, wide in enumerate(others, 1):
        if wide > room and len(blocks[-1]) > 1:
            blocks.append([0])
            room = width - EDGES - first
        blocks[-1].append(column)
        room -= wide
    return blocks


def _grid(cells: Cells, widths: list[int], bold: set[tuple[int, int]], block: list[int], title: Text | None) -> Grid:
    padding = (0, GAP - 1, 0, 0)
    grid = Grid(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=padding, pad_edge=False)
    for column in block:
        look: dict[str, Any] = {"justify": "right" if column else "left", "vertical": "bottom", "overflow": "fold"}
        grid.add_column(cell(cells[0][column]), width=widths[column] - GAP, **look)
    for number, row in enumerate(cells[1:], 1):
        grid.add_row(*(cell(row[c], style="bold" if (number, c) in bold else "") for c in block))
    return grid


def _plain(text: str) -> str:
    return re.sub(r"([\\`*|<>])", r"\\\1", text)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The table of a comparison: methods as rows; sites, mean, difference to a baseline and cost as columns."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from fedpeft.compare.intervals import interval, paired, signed
from fedpeft.compare.outcome import Outcome, caution_of
from fedpeft.compare.published import CAUTION, NOT_COMPARABLE, SOURCE, published
from fedpeft.errors import FedpeftError
from fedpeft.metrics import TITLES
from fedpeft.report.wording import DASH, FEWER

MOST_SITES = 12  # with a column of their own
_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"}
_LATEX |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_LATEX |= {"–": "--", "±": "$\\pm$", "†": "$\\dagger$"}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A table as text: `best` holds (row, column) of the highest means; `notes` stand below it.

    The columns behind the first are `sites` sites.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]]
    notes: tuple[str, ...]
    sites: int = 0

    def grid(self, width: int) -> Grid:
        """For a terminal of this width; where it has no room for all columns, the sites stand in the files only."""
        shown = list(range(len(self.columns)))
        if sum(self._width(column) for column in shown) > width:
            del shown[1 : 1 + self.sites]
        grid = Grid(box=box.SIMPLE_HEAD, title=Text(self.title, style="bold"), title_justify="left")
        for column in shown:
            grid.add_column(
                Text(self.columns[column]), justify="right" if column else "left", vertical="bottom", overflow="fold"
            )
        for r, row in enumerate(self.rows):
            grid.add_row(*(Text(row[c], style="bold" if (r, c) in self.best else "") for c in shown))
        return grid

    def _width(self, column: int) -> int:
        head = max(map(len, self.columns[column].split()))
        return max(head, *(len(row[column]) for row in self.rows)) + 3

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
        """For a spreadsheet."""
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([self.columns, *self.rows])
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


def compared(outcomes: Sequence[Outcome], *, baseline: str, last: int = 1) -> Comparison:
    """Return the table of runs of one task.

    Args:
        outcomes: any number of seeds for each method; rows stand in the order of the methods' first run.
        baseline: the method that the others are compared with, seed by seed.
        last: rounds whose mean is a run's figure.

    Raises:
        FedpeftError: there is no such method, or there are runs of different metrics.
    """
    by_method: dict[str, list[Outcome]] = {}
    for one in outcomes:
        by_method.setdefault(one.method, []).append(one)
    if baseline not in by_method:
        raise FedpeftError(f"--baseline {baseline!r} is none of {', '.join(by_method)}: name one of them.")
    metrics = list(dict.fromkeys(metric for one in outcomes for metric in one.metrics.values()))
    sites = list(dict.fromkeys(site for one in outcomes for site in one.metrics))
    sites = sites if len(sites) <= MOST_SITES else []
    beside = published(outcomes)
    heads, columns = ["method"], [list(by_method)]
    for site in sites:
        heads.append(site)
        columns.append([_percent([_of_site(one, site, last) for one in runs]) for runs in by_method.values()])
    best: set[tuple[int, int]] = set()
    for metric in metrics:
        figures = {name: _of_seeds(runs, metric, last) for name, runs in by_method.items()}
        means = [
            round(statistics.fmean(of_seeds.values()), 1) if of_seeds else -math.inf for of_seeds in figures.values()
        ]
        best |= {(row, len(heads)) for row, mean in enumerate(means) if mean == max(means)} if len(means) > 1 else set()
        heads.append(f"mean {TITLES[metric]} (%)" + " ± sd" * any(len(seeds) > 1 for seeds in figures.values()))
        fewer = [FEWER * (not all(one.complete(last=last) for one in runs)) for runs in by_method.values()]
        shown = [_with_spread(list(of_seeds.values())) for of_seeds in figures.values()]
        columns.append([text + mark * (text != DASH) for text, mark in zip(shown, fewer, strict=True)])
        if len(by_method) > 1:
            heads.append(f"minus {baseline}" + f", {TITLES[metric]}" * (len(metrics) > 1))
            columns.append([_difference(name, figures, baseline) for name in figures])
    if beside:
        heads.append("published (%)")
        columns.append([beside.get(name, DASH) for name in by_method])
    heads += ["Mbit a round", "seconds a run", "seeds"]
    columns.append([_megabits(runs) for runs in by_method.values()])
    columns.append([f"{statistics.median(one.seconds for one in runs):.0f}" for runs in by_method.values()])
    columns.append([str(len({one.seed for one in runs})) for runs in by_method.values()])
    return Comparison(
        title=f"{outcomes[0].task}: {_when(outcomes, last)}",
        columns=tuple(heads),
        rows=tuple(zip(*columns, strict=True)),
        best=frozenset(best),
        notes=_notes(outcomes, beside, last),
        sites=len(sites),
    )


def _of_seeds(runs: Sequence[Outcome], metric: str, last: int) -> dict[int, float]:
    """Return seed -> figure, of the runs that have one."""
    figures = {one.seed: one.figure(metric, last=last) for one in runs}
    return {seed: figure for seed, figure in figures.items() if math.isfinite(figure)}


def _of_site(one: Outcome, site: str, last: int) -> float:
    values = [sites[site] for sites in one.figures[-last:] if site in sites]
    return 100 * statistics.fmean(values) if values else math.nan


def _percent(values: Sequence[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    return f"{statistics.fmean(known):.1f}" if known else DASH


def _with_spread(values: Sequence[float]) -> str:
    if not values:
        return DASH
    return f"{statistics.fmean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def _difference(name: str, figures: dict[str, dict[int, float]], baseline: str) -> str:
    pairs = paired(figures[name], figures[baseline])
    return signed(*interval(pairs)) if pairs and name != baseline else DASH


def _megabits(runs: Sequence[Outcome]) -> str:
    counted = [one.megabits()[-1] / len(one.sent) for one in runs if one.sent]
    return f"{statistics.fmean(counted):.2f}" if counted else DASH


def _when(outcomes: Sequence[Outcome], last: int) -> str:
    rounds = sorted({len(one.figures) for one in outcomes})
    after = " or ".join(map(str, rounds))
    return f"after {after} rounds" if last == 1 else f"mean of the last {min(last, rounds[-1])} of {after} rounds"


def _notes(outcomes: Sequence[Outcome], beside: dict[str, str], last: int) -> tuple[str, ...]:
    several = len({one.seed for one in outcomes}) > 1
    words = caution_of(outcomes)
    notes = [f"{words}."] if words else []
    notes += ["Differences are paired seed by seed, with a 95 % interval (Student's t)."] if several else []
    if not all(one.complete(last=last) for one in outcomes):
        notes.append(f"{FEWER} a mean of some sites: others were not drawn, or did not answer, in these rounds.")
    notes += ["Mbit: adapters that all sites send in a round; seconds: of one run, on a machine that runs share."]
    notes += [f"{SOURCE}."] if beside else []
    notes += [f"{CAUTION}."] if any(NOT_COMPARABLE in text for text in beside.values()) else []
    return tuple(notes)


def _plain(text: str) -> str:
    return re.sub(r"([\\`*|<>])", r"\\\1", text)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)

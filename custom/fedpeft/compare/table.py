# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The table of a comparison: methods as rows; sites, mean, difference to a baseline and cost as columns.

Differences are paired seed by seed and have an interval. The table is printed on a terminal, and written as Markdown,
CSV and LaTeX.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.table import Table as Grid
from rich.text import Text
from scipy import stats

from fedpeft.compare.outcome import Outcome, caution_of, metrics_of
from fedpeft.compare.published import NOT_COMPARABLE, differences, not_said, published, source_of
from fedpeft.core.console import Console, cell
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import replacing
from fedpeft.core.metrics import BALANCED_ACCURACY, TITLES
from fedpeft.core.text import counted, csv_cell, markdown_text
from fedpeft.report.tables import Table
from fedpeft.report.wording import DASH, FEWER, FEWER_SITES, Alignment

Cells = tuple[tuple[str, ...], ...]  # a row of heads, then the others
GAP, EDGES = 2, 2  # letters between columns and beside the table of the terminal
_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"}
_LATEX |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_LATEX |= {"–": "--", "±": "$\\pm$", "†": "$\\dagger$"}

CONFIDENCE = 0.95
TWO_SEEDS = (
    "Two seeds: an interval of two differences has one degree of freedom. Its width is largely chance: three seeds or "
    "more say whether methods differ."
)
OTHER_SEEDS = (
    "The runs of the methods have different seeds: no figure is marked as the best, and differences are of the seeds "
    "that both have."
)
MAX_SITES = 12  # up to which each has a column
MEAN, POOLED = "mean", "pooled"
CPU_SECONDS = (
    "CPU seconds: what all threads and child processes computed in the rounds, in seconds of a core, without the "
    "encoding of images by a frozen encoder; the median of the seeds; runs beside it hardly change them."
)


def grids(table: Table, width: int) -> list[Grid]:
    """Return a table for a terminal; if it is too wide, with methods as columns, and in several grids if need be."""
    cells = (table.columns, *table.rows)
    bold = {(row + 1, column) for row, column in table.best}
    if sum(_widths(cells, width)) + EDGES > width:
        cells, bold = tuple(zip(*cells, strict=True)), {(column, row) for row, column in bold}
    wide = _widths(cells, width)
    found = [_grid(cells, wide, bold, block) for block in _blocks(wide, width)]
    found[0].title = Text(table.title, style="bold")
    return found


def show_table(table: Table) -> None:
    """Print a table and its notes on the terminal."""
    console = Console()
    console.print(*grids(table, console.width))
    for note in table.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is created if needed; a file appears when it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with replacing(folder / name) as draft:
            draft.write_bytes(content)


def markdown(table: Table) -> str:
    """Return a table for a page or a README."""
    rule = [":---", *["---:"] * (len(table.columns) - 1)]
    rows = [list(map(markdown_text, table.columns)), rule, *_escaped_rows(table, markdown_text, "**{}**")]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    notes = [f"{markdown_text(note)}  " for note in table.notes]
    return "\n".join([f"## {markdown_text(table.title)}", "", *lines, "", *notes]) + "\n"


def csv_of(table: Table) -> str:
    """Return a table for a spreadsheet: every column but the first has only numbers, or nothing."""
    file = io.StringIO()
    rows = ([head for head, _ in table.values], *zip(*(column for _, column in table.values), strict=True))
    csv.writer(file, lineterminator="\n").writerows(map(csv_cell, row) for row in rows)
    return file.getvalue()


def latex(table: Table) -> str:
    """Return a table for a paper, with the package booktabs."""
    body = " \\\\\n".join(" & ".join(row) for row in _escaped_rows(table, _latex, "\\textbf{{{}}}"))
    heads, form = " & ".join(map(_latex, table.columns)), "l" + "r" * (len(table.columns) - 1)
    notes = "".join(f"% {note}\n" for note in table.notes)
    return (
        f"% {table.title}\n{notes}\\begin{{tabular}}{{{form}}}\n\\toprule\n{heads} \\\\\n\\midrule\n"
        f"{body} \\\\\n\\bottomrule\n\\end{{tabular}}\n"
    )


def _escaped_rows(table: Table, escape: Callable[[str], str], best: str) -> list[list[str]]:
    """Return the rows with each cell escaped, and the best ones in the form `best`."""
    return [
        [best.format(escape(cell)) if (r, c) in table.best else escape(cell) for c, cell in enumerate(row)]
        for r, row in enumerate(table.rows)
    ]


def _widths(cells: Cells, width: int) -> list[int]:
    """Return how wide each column is, including the gap after it, at most half the terminal.

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


def _grid(cells: Cells, widths: list[int], bold: set[tuple[int, int]], block: list[int]) -> Grid:
    padding = (0, GAP - 1, 0, 0)
    grid = Grid(box=box.SIMPLE_HEAD, title_justify="left", padding=padding, pad_edge=False)
    for column in block:
        look: dict[str, Any] = {"justify": "right" if column else "left", "vertical": "bottom", "overflow": "fold"}
        grid.add_column(cell(cells[0][column]), width=widths[column] - GAP, **look)
    for number, row in enumerate(cells[1:], 1):
        grid.add_row(*(cell(row[c], style="bold" if (number, c) in bold else "") for c in block))
    return grid


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the mean of paired differences and half the width of its 95 % interval (Student's t); infinite for one."""
    mean, count = statistics.fmean(differences), len(differences)
    if count < 2:
        return mean, math.inf
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
    return mean, quantile * statistics.stdev(differences) / math.sqrt(count)


def paired(mine: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Return my figure minus theirs for each seed that both have."""
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


def signed(differences: Sequence[float]) -> str:
    """Return the mean of differences with its interval as text, and say if there are only one or two seeds."""
    mean, half = interval(differences)
    mean = round(mean, 1) + 0.0  # of a negative zero, zero
    if len(differences) == 1:
        return f"{mean:+.1f}, one seed"
    return f"{mean:+.1f} ± {half:.1f}" + ", two seeds" * (len(differences) == 2)


def compared(outcomes: Sequence[Outcome], *, baseline: str, last: int = 1) -> Table:
    """Return the table of runs of one task, with rows in the order of the methods' first run.

    The other methods are compared with the baseline seed by seed; a run's figure is the mean of its last rounds.
    """
    by_method: dict[str, list[Outcome]] = {}
    for run in outcomes:
        by_method.setdefault(run.method, []).append(run)
    if baseline not in by_method:
        raise FedpeftError(f"--baseline {baseline!r} is none of {', '.join(by_method)}: name one of them.")
    last = min(last, max(len(run.figures) for run in outcomes))
    beside = published(outcomes)
    columns = _Columns(by_method)
    _add_figures(columns, outcomes, by_method, baseline, last)
    if beside:
        columns.published([beside.get(name) for name in by_method], sure=not differences(outcomes))
    columns.numbers("MB a round", [_megabytes(runs) for runs in by_method.values()], ".2f")
    if any(run.cpu_seconds is not None for run in outcomes):
        columns.numbers("CPU seconds a run", [_cpu_seconds(runs) for runs in by_method.values()], ".0f")
    columns.numbers("seeds", [len({run.seed for run in runs}) for runs in by_method.values()], "d")
    return Table(
        title=f"{outcomes[0].task}: {_after_rounds(outcomes, last)}",
        columns=tuple(columns.heads),
        rows=tuple(zip(*columns.texts, strict=True)),
        averages=0,
        best=frozenset(columns.best),
        notes=_notes(outcomes, columns, bool(beside), last),
        values=tuple(columns.values),
    )


def _add_figures(
    columns: _Columns, outcomes: Sequence[Outcome], by_method: Mapping[str, Sequence[Outcome]], baseline: str, last: int
) -> None:
    """Add the figures of few sites, the means of each metric with their differences, and the pooled figures."""
    metrics, sites = metrics_of(outcomes), list(dict.fromkeys(site for run in outcomes for site in run.metrics))

    def away(metric: str | None = None) -> list[set[tuple[int, int, str]]]:
        """Return for each method the sites of the table without a figure, with the seed and the round."""
        return [
            {(run.seed, *entry) for run in runs for entry in run.missing(last=last, metric=metric, beside=outcomes)}
            for runs in by_method.values()
        ]

    of_all = away()
    for site in sites if len(sites) <= MAX_SITES else []:
        means = [_mean([run.site_figure(site, last=last) for run in runs]) for runs in by_method.values()]
        own = [{entry for entry in entries if entry[-1] == site} for entries in of_all]
        columns.site_figures(site, means, columns.compared(own))
    for metric in metrics:
        whole = columns.compared(away(metric))
        of_seeds = [_finite(run.figure(metric, last=last) for run in runs) for runs in by_method.values()]
        columns.means(TITLES[metric], of_seeds, whole)
        if len(by_method) > 1:
            of_metric = f", {TITLES[metric]}" * (len(metrics) > 1)
            theirs = {run.seed: run for run in by_method[baseline]}
            pairs = [
                _finite(run.minus(theirs[run.seed], metric, last=last) for run in runs if run.seed in theirs)
                if name != baseline
                else []
                for name, runs in by_method.items()
            ]
            columns.differences(
                f"minus {baseline}{of_metric}", pairs, whole, baseline_whole=whole[[*by_method].index(baseline)]
            )
    if any(run.pooled for run in outcomes):
        whole = columns.compared(away(BALANCED_ACCURACY))
        of_runs = [_finite(run.pooled_figure(last=last) for run in runs) for runs in by_method.values()]
        columns.means(TITLES[BALANCED_ACCURACY], of_runs, whole, what=POOLED)


class _Columns:
    """Heads and columns as text, the same as numbers, and where the best figures are."""

    def __init__(self, by_method: Mapping[str, Sequence[Outcome]]) -> None:
        self.heads, self.texts = ["method"], [list(by_method)]
        self.values: list[tuple[str, tuple[str | float | None, ...]]] = [("method", tuple(by_method))]
        self.best: set[tuple[int, int]] = set()
        self.counts_of_pairs: set[int] = set()  # seeds that a difference is of
        self.whole = True  # whether no figure lacks a site or a round
        self.same_seeds = len({frozenset(run.seed for run in runs) for runs in by_method.values()}) == 1
        self.ranked = True  # whether all methods have figures of the same sites, rounds and seeds: one can be best

    def compared(self, away: Sequence[set[tuple[int, int, str]]]) -> list[bool]:
        """Rank the next columns only if all methods lack the same; return for each method whether it lacks nothing."""
        self.ranked = self.same_seeds and all(one == away[0] for one in away)
        self.whole = self.whole and not any(away)
        return [not one for one in away]

    def numbers(self, head: str, numbers: Sequence[float | None], form: str, *, mark: str = "") -> None:
        """Add a column of numbers."""
        self._add(head, [DASH if number is None else f"{number:{form}}{mark}" for number in numbers])
        self._keep(head, numbers)

    def site_figures(self, site: str, means: Sequence[float | None], whole: Sequence[bool]) -> None:
        """Add a site's figures; those of some rounds or seeds only are marked."""
        self._mark_best(means)
        shown = [_format_mean(mean, None) for mean in means]
        self._add(
            site, [text + FEWER * (text != DASH and not all_of) for text, all_of in zip(shown, whole, strict=True)]
        )
        self._keep(site, means)

    def means(
        self, metric: str, of_seeds: Sequence[Sequence[float]], whole: Sequence[bool], *, what: str = MEAN
    ) -> None:
        """Add means over seeds, of means over sites or of figures of all sites; those of some sites only are marked."""
        means = [_mean(figures) for figures in of_seeds]
        spreads = [statistics.stdev(figures) if len(figures) > 1 else None for figures in of_seeds]
        several = any(spread is not None for spread in spreads)
        self._mark_best(means)
        head, of_metric = f"{what} {metric} (%)", metric if what == MEAN else f"{what} {metric}"
        shown = [_format_mean(mean, spread) for mean, spread in zip(means, spreads, strict=True)]
        marked = [text + FEWER * (text != DASH and not sites) for text, sites in zip(shown, whole, strict=True)]
        self._add(head + " ± sd" * several, marked)
        self._keep(head, means)
        if several:
            self._keep(f"sd {of_metric} (%)", spreads)
        if not all(whole):
            self._keep(f"all sites, {of_metric}", [int(sites) for sites in whole])

    def differences(
        self, head: str, pairs: Sequence[Sequence[float]], whole: Sequence[bool], *, baseline_whole: bool
    ) -> None:
        """Add differences with their intervals; a row without any is that of the baseline."""
        found = [interval(one) if one else None for one in pairs]
        self.counts_of_pairs.update(map(len, pairs))
        marks = [FEWER * (not (sites and baseline_whole)) for sites in whole]
        self._add(head, [signed(one) + mark if one else DASH for one, mark in zip(pairs, marks, strict=True)])
        self._keep(head, [one[0] if one else None for one in found])
        self._keep(f"{head}, half of the 95 % interval", [one[1] if one else None for one in found])
        self._keep(f"{head}, seeds", [len(one) if one else None for one in pairs])

    def published(self, figures: Sequence[float | None], *, sure: bool) -> None:
        """Add the papers' figures; those that ours cannot be compared with are marked."""
        self.numbers("published (%)", figures, ".1f", mark="" if sure else NOT_COMPARABLE)
        self._keep("published is comparable", [None if figure is None else int(sure) for figure in figures])

    def _add(self, head: str, cells: list[str]) -> None:
        self.heads.append(head)
        self.texts.append(cells)

    def _keep(self, head: str, numbers: Sequence[float | None]) -> None:
        finite = (number if number is not None and math.isfinite(number) else None for number in numbers)
        rounded = (number if number is None else round(number, 4) for number in finite)
        self.values.append((head, tuple(abs(number) if number == 0 else number for number in rounded)))

    def _mark_best(self, means: Sequence[float | None]) -> None:
        """Mark the highest figure of the next column, as it is shown; none if two methods share it."""
        shown = [-math.inf if mean is None else round(mean, 1) for mean in means]
        if self.ranked and len(shown) > 1 and shown.count(max(shown)) == 1:
            self.best.add((shown.index(max(shown)), len(self.texts)))


def _finite(figures: Iterable[float]) -> list[float]:
    return [figure for figure in figures if math.isfinite(figure)]


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return statistics.fmean(known) if known else None


def _format_mean(mean: float | None, spread: float | None) -> str:
    if mean is None:
        return DASH
    return f"{mean:.1f}" + (f" ± {spread:.1f}" if spread is not None else "")


def _megabytes(runs: Sequence[Outcome]) -> float | None:
    return _mean([value for run in runs if (value := run.megabytes_a_round()) is not None])


def _cpu_seconds(runs: Sequence[Outcome]) -> float | None:
    known = [run.cpu_seconds for run in runs if run.cpu_seconds is not None]
    return statistics.median(known) if known else None


def _after_rounds(outcomes: Sequence[Outcome], last: int) -> str:
    rounds = sorted({len(run.figures) for run in outcomes})
    after = f"{' or '.join(map(str, rounds))} round{'s' * (rounds != [1])}"
    return f"after {after}" if last == 1 else f"mean of the last {min(last, rounds[-1])} of {after}"


def _moved_places(outcomes: Sequence[Outcome]) -> list[str]:
    """Return how many places the alignment of each method moved in all its runs."""
    said: dict[str, list[str]] = {}
    for method in dict.fromkeys(run.method for run in outcomes):
        counted = sum((run.alignment for run in outcomes if run.method == method), Alignment())
        said.setdefault(counted.sentence(), []).append(method)
    return [f"{', '.join(methods)}: {sentence}." for sentence, methods in said.items() if sentence]


def _notes(outcomes: Sequence[Outcome], columns: _Columns, beside: bool, last: int) -> tuple[str, ...]:
    sites = {site for run in outcomes for site in run.metrics}
    words = caution_of(outcomes)
    notes = [f"{words}."] if words else []
    if any(count > 1 for count in columns.counts_of_pairs):
        notes.append("Differences are paired seed by seed, with a 95 % interval (Student's t).")
    notes += [TWO_SEEDS] if 2 in columns.counts_of_pairs else []
    if not columns.same_seeds:
        notes.append(OTHER_SEEDS)
    if len(sites) > MAX_SITES:
        notes.append(f"{len(sites)} sites: more than {MAX_SITES} have no columns of their own.")
    if not columns.whole:
        notes.append(FEWER_SITES)
        if len({run.method for run in outcomes}) > 1:
            notes.append("Differences are over the sites and rounds that both runs have.")
    if refused := sum(run.refused for run in outcomes):
        notes.append(f"Missing or refused, and in no figure: {counted(refused, 'reply', 'replies')}.")
    if any(run.pooled for run in outcomes):
        measured = " measured by balanced accuracy" * (len(metrics_of(outcomes)) > 1)
        notes.append(f"{POOLED}: on the test images of all sites{measured} together, the mean over their classes.")
    notes += ["MB: a million bytes of adapters, as one site sends them in a round."]
    notes += _moved_places(outcomes)
    if any(run.cpu_seconds is not None for run in outcomes):
        notes.append(CPU_SECONDS)
    if beside and (source := source_of(outcomes[0].task)):
        notes.append(f"published: {source.title}. {not_said(outcomes)}".rstrip())
        if why := differences(outcomes):
            notes.append(f"{NOT_COMPARABLE} not comparable: {'; '.join(why)}.")
    return tuple(notes)

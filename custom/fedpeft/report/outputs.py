# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A run on the terminal, as Markdown, as CSV, and as one HTML page that loads nothing and has no script."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.table import Table as Grid
from rich.text import Text

from fedpeft.core.console import Console, cell
from fedpeft.core.metrics import TITLES as METRICS
from fedpeft.core.text import csv_cell, markdown_text, sites_in_words
from fedpeft.report.history import History
from fedpeft.report.page_parts import Picture, figure, headline, laid_out, page_of, section
from fedpeft.report.tables import AVERAGED, Table, all_tables, by_round, last_and_best, trained_layers
from fedpeft.report.wording import (
    ACCURACIES,
    TITLES,
    Mean,
    caption,
    means,
    moved_places,
    not_learning,
    note,
    parts,
    rejections,
)

MAX_LENGTH = 20  # letters of a name before it is folded
FRAME = 3  # letters that rich puts around a column
COLUMNS = ("job", "method", "round", "site", "status", *ACCURACIES, "loss", "samples", "alignment", "reason", "note")


def print_tables(history: History, *, console: Console | None = None, metrics: Sequence[str] = ("overall",)) -> None:
    """Print the last round, the best one, each metric round by round, the layers trained, and the rejected replies.

    A table that is wider than the console is cut into blocks of columns; none of its figures is left out.
    """
    console = console or Console()
    shown = [name for name in metrics if name not in TITLES or name in parts(history)]
    scheduled = (trained_layers(history),) if history.scheduled else ()
    for table in (*last_and_best(history), *(by_round(history, name) for name in shown), *scheduled):
        console.print(Text(table.title, style="bold"))
        for block in _blocks(table, console.width):
            console.print(_grid(table, block))
        for line in filter(None, (caption(history), table.marks)):
            console.print(Text(line), soft_wrap=True)
        console.print()
    for line in filter(None, (moved_places(history), *not_learning(history), *rejections(history))):
        console.print(Text(line), soft_wrap=True)


def _min_width(table: Table, index: int) -> int:
    """Return the smallest width of a column: that of its longest figure or word; longer names are folded."""
    words = [word for cell in (table.columns[index], *(row[index] for row in table.rows)) for word in cell.split()]
    return min(max(cell_len(word) for word in words), MAX_LENGTH)


def _blocks(table: Table, width: int) -> list[list[int]]:
    """Return the column indices of each block; the first column, which names the rows, is in every block."""
    blocks = [[0]]
    for index in range(1, len(table.columns)):
        needed = sum(_min_width(table, i) + FRAME for i in [*blocks[-1], index])
        if len(blocks[-1]) > 1 and needed >= width:
            blocks.append([0])
        blocks[-1].append(index)
    return blocks


def _grid(table: Table, block: list[int]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD)
    for index in block:
        look: dict[str, Any] = {"justify": "left" if index == 0 else "right", "vertical": "bottom", "overflow": "fold"}
        grid.add_column(cell(table.columns[index]), **look)
    first_mean = len(table.rows) - table.averages
    for number, row in enumerate(table.rows):
        style = "bold" if row[0] in AVERAGED and number >= first_mean else None
        grid.add_row(*(cell(row[index]) for index in block), style=style)
    return grid


def markdown(history: History) -> str:
    """Return all tables with captions: the last round, three accuracies by round; same history, same text."""
    parts = [_markdown_table(table, caption(history)) for table in all_tables(history)]
    if history.scheduled:
        parts.append("![Layer scores, chosen layers and layer use](schedule.svg)")
    remarks = [*not_learning(history), *rejections(history)]
    if remarks:
        parts.append("\n".join(f"- {markdown_text(line)}" for line in remarks))
    return f"# {markdown_text(history.job)}\n\n" + "\n\n".join(parts) + f"\n\n{markdown_text(history.source)}\n"


def _markdown_table(table: Table, line: str) -> str:
    rule = [":---"] + ["---:"] * (len(table.columns) - 1)
    rows = [[markdown_text(cell) for cell in row] for row in (table.columns, *table.rows)]
    rows.insert(1, rule)
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    below = "  \n".join(f"*{markdown_text(text)}*" for text in (line, table.marks) if text)
    return f"## {markdown_text(table.title)}\n\n{body}\n\n{below}"


def tidy_csv(history: History) -> str:
    """Return one row for each round and site: fractions in full precision, an empty cell for none.

    `status` is "replied", "rejected" or "absent". `note` is in every row, not in a comment above the head, so
    that it survives any reader and any filter. The same history gives the same text.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    remark = note(history)
    for one in history.rounds:
        for site in history.sites:
            result = one.sites.get(site)
            status = "rejected" if site in one.rejected else "absent" if result is None else "replied"
            row = [history.job, history.method, one.round, site, status]
            row += [getattr(result, name, None) for name in (*ACCURACIES, "loss", "samples")]
            row += [one.alignment.get(site), one.rejected.get(site), remark]
            rows.writerow(map(csv_cell, row))
    return text.getvalue()


def page(history: History, pictures: Mapping[str, Picture], *, top: str = "") -> str:
    """Return the page's HTML; the same history and pictures (`plots.pictures`) give the same text.

    `top` is HTML above the job's name, for a page that is served.
    """
    refused = "".join(f"<li>{escape(line)}</li>" for line in rejections(history))
    return page_of(
        f"{history.job}: federated training report",
        history.job,
        history.method,
        warnings=(note(history), *not_learning(history)),
        figures=_figures(history),
        top=top,
        sections=(
            *(section(one.section, figure(one, one.described)) for one in pictures.values()),
            *(section(table.title, laid_out(table)) for table in all_tables(history)),
            section("Rejected replies", f'<ul class="rejected">{refused}</ul>') if refused else "",
            section("Settings", _settings(history)),
        ),
    )


def state_line(text: str) -> str:
    """Return a line above the page with the state of a run that has not completed; empty for no text."""
    return f'<p class="live">{escape(text)}</p>\n' if text else ""


def _figures(history: History) -> str:
    """Return the means after the last round, in large type."""
    last = dict(_last_means(history))
    of = sites_in_words(means(history, "overall")[-1].count, len(history.sites))
    lead = f"Mean {history.measured_by} of {of} after round {history.rounds[-1].round}"
    return headline(lead, {name: mean.value for name, mean in last.items()})


def _last_means(history: History) -> Iterator[tuple[str, Mean]]:
    """Yield title and mean of every figure; those of open and closed questions only if all sites answer questions."""
    if len(history.by_metric) == 1 and len(parts(history)) > 1:
        yield from ((TITLES[part], means(history, part)[-1]) for part in parts(history))
        return
    for metric, sites in history.by_metric.items():
        yield METRICS[metric], means(history, "overall", sites=sites)[-1]


def _settings(history: History) -> str:
    spent = [one.seconds for one in history.rounds if one.seconds is not None]
    facts = {
        "job": history.job,
        "method": history.method,
        "source": history.source,
        "sites": ", ".join(history.sites),
        "rounds": f"{len(history.rounds)} finished, the last is round {history.rounds[-1].round}",
        **({"time of the rounds": f"{sum(spent):.1f} s, {sum(spent) / len(spent):.1f} s each"} if spent else {}),
    }
    rows = [*facts.items(), *history.settings.items()]
    cells = "\n".join(f'<tr><th scope="row">{escape(key)}</th><td>{escape(value)}</td></tr>' for key, value in rows)
    return f'<div class="wide"><table class="settings"><tbody>\n{cells}\n</tbody></table></div>'

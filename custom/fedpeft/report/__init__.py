# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Tables, pictures and one page from a run's history.json; matplotlib and rich are imported only when needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedpeft.core.console import Console

OPTIONAL = ("sent", "losses", "schedule", "fronts")  # pictures that only some runs have
SURFACE = "surface.svg"  # what `fedpeft report --surface` adds to a report


def render(source: str | Path, out_dir: str | Path, *, state: str = "") -> dict[str, Path]:
    """Write a run's tables, pictures and page into a folder, which is created if needed.

    Args:
        source: the run's folder, or its history.json itself.
        out_dir: where the files go; files of the same names are replaced, and pictures of another run removed.
        state: of a run that has not completed, in words, for the top of the page.

    Returns:
        `markdown` (tables.md), `csv` (accuracy.csv), `picture` (convergence.svg), `page` (report.html),
        and `sent` (sent.svg) if what was sent was counted, `losses` (losses.svg) if losses were measured at both
        ends of the rounds, `schedule` (schedule.svg) if any round has a schedule, `fronts` (fronts.svg) if layers
        were scored.

    Raises:
        HistoryError: the history is missing, damaged or incomplete; nothing is written then.
        FedpeftError: the folder cannot be written.
    """
    from fedpeft.core.errors import FedpeftError, LocalError
    from fedpeft.core.files import replacing
    from fedpeft.report.history_reader import read
    from fedpeft.report.outputs import markdown, page, state_line, tidy_csv
    from fedpeft.report.plots import picture_files, pictures

    history = read(source)
    files = picture_files(history)
    contents = {
        "markdown": ("tables.md", markdown(history).encode()),
        "csv": ("accuracy.csv", tidy_csv(history).encode()),
        "picture": ("convergence.svg", files.pop("curves")),
        "page": ("report.html", page(history, pictures(history), top=state_line(state)).encode()),
        **{name: (f"{name}.svg", file) for name, file in files.items()},
    }
    folder = Path(out_dir)
    written = {}
    outdated: set[str] = set()
    if (folder / contents["page"][0]).is_file():  # of an earlier report
        outdated = {f"{name}.svg" for name in OPTIONAL} - {name for name, _ in contents.values()}
        outdated |= set() if _is_in(folder, source) else {SURFACE}
    try:
        for kind, (name, content) in contents.items():
            written[kind] = folder / name
            with replacing(written[kind]) as draft:
                draft.write_bytes(content)
        for name in outdated:
            (folder / name).unlink(missing_ok=True)
    except (OSError, LocalError) as error:
        reason = getattr(error.__cause__ or error, "strerror", None) or error
        raise FedpeftError(f"Cannot write the report into {folder} ({reason}); name another folder.") from error
    return written


def _is_in(folder: Path, source: str | Path) -> bool:
    """Return whether a folder is in that of a run, so that its report can only be of this run."""
    run = Path(source).resolve()
    inside = folder.resolve()
    return (run.parent if run.is_file() else run) in (inside, *inside.parents)


def show(source: str | Path, *, console: Console | None = None, metrics: Sequence[str] = ("overall",)) -> None:
    """Print a run's tables on the terminal: its last round in full, then one table round by round for each metric.

    Args:
        source: the run's folder, or its history.json itself.
        console: where to print; default: the terminal.
        metrics: which of "overall", "open", "closed" to print round by round.

    Raises:
        HistoryError: the history is missing, broken or incomplete.
        FedpeftError: an unknown metric.
    """
    from fedpeft.report.history_reader import read
    from fedpeft.report.outputs import print_tables

    print_tables(read(source), console=console, metrics=metrics)

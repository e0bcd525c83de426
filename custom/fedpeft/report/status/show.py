# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Render a run's progress for the terminal: one bar, one line of figures, and rejected replies.

Show a run's progress once, or repeatedly until it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from fedpeft.core.console import Console, cell
from fedpeft.core.errors import FedpeftError
from fedpeft.core.text import duration
from fedpeft.report.status.progress import COMPLETED, FAILED, Progress

BAR = 40
STYLES = {COMPLETED: "green", FAILED: "bold red"}


def show(progress: Progress, *, now: float | None = None) -> RenderableType:
    """Return what the terminal shows."""
    head = Table.grid(padding=(0, 2))
    head.add_row(
        cell(progress.job or "a job", style="bold"),
        ProgressBar(total=progress.rounds or 1, completed=progress.round if progress.rounds else 0, width=BAR),
        cell(_rounds(progress)),
        cell(progress.state, style=STYLES.get(progress.state, "")),
    )
    note = "" if progress.state == FAILED else progress.reason  # that of a failure is the command's error
    lines = [cell(text) for text in (figures(progress, now=now), note) if text]
    warnings = (*(f"rejected: {reason}" for reason in progress.rejected), *progress.not_learning)
    return Group(head, *lines, *(cell(warning, style="yellow") for warning in warnings))


def figures(progress: Progress, *, now: float | None = None) -> str:
    """Return the mean of the sites, last round and estimated end as text; empty before the first round."""
    parts = []
    if progress.mean is not None:
        parts.append(f"mean {progress.measured_by} {100 * progress.mean:.1f} %")
    if progress.seconds is not None:
        ago = f", {duration(progress.ago)} ago" if progress.ago is not None and not progress.ended else ""
        parts.append(f"last round {duration(progress.seconds)}{ago}")
    if progress.left is not None:
        end = (time.time() if now is None else now) + progress.left
        parts.append(
            f"{duration(progress.left)} left, ends about {time.strftime('%Y-%m-%d %H:%M', time.localtime(end))}"
        )
    return "; ".join(parts)


def _rounds(progress: Progress) -> str:
    if progress.rounds is not None:
        return f"{progress.round} of {progress.rounds} rounds"
    if progress.round:
        return f"{progress.round} rounds"
    return "" if progress.ended else "no round finished yet"


def follow(
    read: Callable[[], Progress],
    *,
    console: Console | None = None,
    until_end: bool = True,
    pause: Callable[[], None] = lambda: time.sleep(2),
) -> Progress:
    """Read and show the progress until the run has ended, or once; return what was shown last.

    On a terminal the picture stays in place, elsewhere it is printed when a round ends; `pause` is called between
    reads.
    """
    console = console or Console()
    progress = read()
    if not until_end or progress.ended:
        console.print(show(progress), soft_wrap=not console.is_terminal)
    elif console.is_terminal:
        with Live(show(progress), console=console, auto_refresh=False) as live:
            while not progress.ended:
                pause()
                progress = read()
                live.update(show(progress), refresh=True)
    else:
        progress = _print_changes(progress, read, console, pause)
    if progress.state == FAILED:
        raise FedpeftError(f"{progress.job or 'the job'} failed: {progress.reason or 'look at the log of the server.'}")
    return progress


def _print_changes(
    progress: Progress, read: Callable[[], Progress], console: Console, pause: Callable[[], None]
) -> Progress:
    shown = None
    while True:
        if (progress.round, progress.state) != shown:
            console.print(show(progress), soft_wrap=True)
            shown = progress.round, progress.state
        if progress.ended:
            return progress
        pause()
        progress = read()

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Show a run's progress once, or repeatedly until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.live import Live

from fedpeft.core.console import Console
from fedpeft.core.errors import FedpeftError
from fedpeft.report.status.progress import FAILED, Progress
from fedpeft.report.status.show import show


def follow(
    read: Callable[[], Progress],
    *,
    console: Console | None = None,
    until_end: bool = True,
    pause: Callable[[], None] = lambda: time.sleep(2),
) -> Progress:
    """Read and show the progress, repeatedly until the run has ended.

    Args:
        read: the run's progress at this moment.
        console: where to print; on a terminal the picture stays in place, elsewhere it is printed when a round ends.
        until_end: False shows it only once.
        pause: called between two reads.

    Returns:
        the progress shown last.

    Raises:
        FedpeftError: the run failed; or what `read` raises.
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

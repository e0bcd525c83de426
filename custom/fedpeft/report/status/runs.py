# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Find a run's folder in the folder that the user names."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedpeft.core.console import Console
from fedpeft.core.errors import FedpeftError
from fedpeft.core.run_names import HISTORY, MANIFEST
from fedpeft.report.status.progress import SIMULATED

PLACES = (Path(), Path("fedpeft"), SIMULATED, Path("workspace/fedpeft"))


def run_folder(named: Path) -> Path:
    """Return the run's folder: the named one, or one in a simulator workspace, run directory or downloaded job.

    A simulator workspace may hold no run yet.

    Raises:
        FedpeftError: there is no such folder, or nothing in it is a run.
    """
    if not named.is_dir():
        raise FedpeftError(
            f"{named} is not a folder: name a run's folder or a workspace, or for a job in a consortium its id "
            f"and --startup-kit."
        )
    for place in PLACES:
        if any((named / place / name).is_file() for name in (HISTORY, MANIFEST)):
            return named / place
    if (named / "local" / "resources.json").is_file():
        return named / SIMULATED
    if earlier := [path for path in sorted(named.iterdir()) if (path / SIMULATED).is_dir()]:
        raise FedpeftError(f"{named} holds {len(earlier)} earlier runs, the newest is {earlier[-1]}: name one of them.")
    raise FedpeftError(f"{named} holds no run, neither {HISTORY} nor {MANIFEST}: name a run's folder or workspace.")


def wait_for_run(
    named: Path, *, console: Console | None = None, pause: Callable[[], None] = lambda: time.sleep(1)
) -> Path:
    """Wait until there is a run and return its folder.

    Args:
        named: as in `run_folder`.
        console: where to print that it waits.
        pause: called between two checks.
    """
    waiting = False
    while True:
        try:
            return run_folder(named)
        except FedpeftError:
            if not waiting:
                (console or Console()).print(
                    f"waiting for a run in {named}; Ctrl-C ends this", markup=False, soft_wrap=True
                )
            waiting = True
            pause()

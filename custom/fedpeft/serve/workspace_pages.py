# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What is shown of a workspace: its pages by path, with what was read and drawn kept until the files change."""

from __future__ import annotations

import logging
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.report.history import History
from fedpeft.report.history_reader import read
from fedpeft.report.page import page
from fedpeft.report.page_parts import Picture
from fedpeft.report.plots import pictures
from fedpeft.report.status.progress import Progress, judged, written_progress
from fedpeft.serve.pages import Comparisons, Run, find_runs, groups, index, top, waiting

PATH = re.compile(r"/(run|compare)/([0-9a-f]{16})")
KEPT = 8  # drawn pages
log = logging.getLogger(__name__)


class WorkspacePages:
    """The pages of a workspace of a simulator, or of a folder of runs."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._progress: dict[str, tuple[Any, Progress | None]] = {}
        self._drawn: dict[str, tuple[Any, History, dict[str, Picture]]] = {}
        self._comparisons = Comparisons()
        self._lock = threading.Lock()  # matplotlib's styles are shared by all threads

    def page(self, path: str) -> tuple[str, bool] | None:
        """Return a page and whether it will change; None if there is no such page."""
        match = PATH.fullmatch(path)
        if path != "/" and not match:
            return None
        with self._lock:
            runs = find_runs(self._workspace)
            if match and match[1] == "run":
                run = runs.get(match[2])
                return self._run(run) if run else None
            self._progress = {key: kept for key, kept in self._progress.items() if key in runs}
            rows = [(run, self._look(run)) for run in runs.values()]
            several = groups(rows)
            if match:
                group = several.get(match[2])
                return (self._comparisons.page(group), False) if group else None
            links = [(group.key, group.job, len(group.runs)) for group in several.values()]
            return index(self._workspace.resolve().name, rows, now=time.time(), comparisons=links), True

    def _run(self, run: Run) -> tuple[str, bool]:
        progress = self._look(run)
        changes = progress is None or not progress.ended
        if progress is None or not progress.round:
            return waiting(run, progress), changes
        try:
            stamp, history, drawn = self._drawn.get(run.key, (None, None, None))
            if stamp != run.stamp:
                history = read(run.folder)
                drawn = pictures(history)
                self._drawn.pop(run.key, None)
                self._drawn[run.key] = run.stamp, history, drawn
                for key in list(self._drawn)[:-KEPT]:
                    del self._drawn[key]
        except FedpeftError as error:
            log.warning("%s", error)
            return waiting(run, None), changes
        above = top(run, progress)
        return page(history, drawn, top=above), changes

    def _look(self, run: Run) -> Progress | None:
        """Return a run's progress; None if it cannot be read."""
        stamp, progress = self._progress.get(run.key, (None, None))
        if stamp != run.stamp:
            progress = _read(run)
            self._progress[run.key] = run.stamp, progress
        if progress is None:
            return None
        ago = None if progress.ago is None else max(0.0, time.time() - run.written)
        return judged(replace(progress, ago=ago), run.folder)


def _read(run: Run) -> Progress | None:
    try:
        return written_progress(run.folder)
    except FedpeftError as error:
        log.warning("%s", error)
        return None

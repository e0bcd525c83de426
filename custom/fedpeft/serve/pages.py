# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The pages of `fedpeft serve` by path: the list of runs, a run's own page, and a comparison of the runs of one job.

Runs are found below a folder; a site's own state is no run, and nothing outside the folder is opened. A page is drawn
when it is first read, and kept until its files change.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from fedpeft.compare.outcome import Outcome
from fedpeft.compare.page import page as comparison_page
from fedpeft.compare.page import picture
from fedpeft.compare.runs import outcomes_of, read_runs
from fedpeft.compare.table import compared
from fedpeft.core.errors import FedpeftError
from fedpeft.core.locks import runs_folder
from fedpeft.core.text import counted, duration
from fedpeft.core.workspace import HISTORY, MANIFEST
from fedpeft.report.history import History
from fedpeft.report.history_reader import read
from fedpeft.report.outputs import page
from fedpeft.report.page_parts import Picture, document
from fedpeft.report.plots import pictures
from fedpeft.report.status import COMPLETED, PLACES, SIMULATED, Progress, figures, judged, written_progress
from fedpeft.report.tables import Table


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run on disk."""

    key: str  # letters and digits only; the same as long as the folder has its name
    name: str  # of the folder that the user knows
    folder: Path  # with history.json and manifest.json
    stamp: tuple[tuple[int, int], ...]  # changes when one of these files does
    written: float  # seconds since 1970 when the last of these files was written


def find_runs(workspace: Path) -> dict[str, Run]:
    """Return the runs of a workspace with its earlier ones, or of a folder of runs, by key; the newest first."""
    found: dict[str, Run] = {}
    try:
        for root, name, folder in _candidates(workspace):
            if run := _run(root.resolve(), name, folder):
                found.setdefault(run.key, run)  # the workspace's own place for it comes before that of a folder in it
    except OSError as error:
        raise FedpeftError(f"{workspace} cannot be listed ({error.strerror}): check its permissions.") from error
    return {run.key: run for run in sorted(found.values(), key=lambda run: -run.written)}


def _candidates(workspace: Path) -> Iterator[tuple[Path, str, Path]]:
    """Yield the folder that a run must lie in, the run's name, and where its files would be."""
    name = workspace.resolve().name
    if _is_simulated(workspace):
        yield workspace, name, workspace / SIMULATED
    else:
        for folder in (workspace, *_folders(workspace)):
            # in a simulator's workspace the other folders are the sites'
            places = (SIMULATED,) if _is_simulated(folder) else PLACES
            shown = name if folder == workspace else folder.name
            yield from ((workspace, shown, folder / place) for place in places)
    earlier = runs_folder(workspace.resolve())
    if earlier.is_dir():
        yield from ((earlier, folder.name, folder / SIMULATED) for folder in _folders(earlier))


def _is_simulated(folder: Path) -> bool:
    with contextlib.suppress(PermissionError):  # such as lost+found
        return (folder / SIMULATED).is_dir() or (folder / "local" / "resources.json").is_file()
    return False


def _folders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".") and _is_folder(entry))


def _is_folder(entry: Path) -> bool:
    with contextlib.suppress(OSError):  # of a link into a folder that may not be read
        return entry.is_dir()
    return False


def _run(root: Path, name: str, folder: Path) -> Run | None:
    stamp, written = [], 0.0
    for file in (folder / HISTORY, folder / MANIFEST):
        try:
            about = file.lstat()
        except OSError:
            continue
        # a link, which a site's process in the simulator could have made, may lead anywhere
        if not stat.S_ISREG(about.st_mode) or not file.resolve().is_relative_to(root):
            return None
        stamp.append((about.st_mtime_ns, about.st_size))
        written = max(written, about.st_mtime)
    if not stamp:
        return None
    return Run(key=_key(str(folder.resolve())), name=name, folder=folder, stamp=tuple(stamp), written=written)


MORE_STYLE = """\
progress { width: 8rem; max-width: 100%; vertical-align: middle; accent-color: #0072b2; }
.rows td { overflow-wrap: anywhere; }
"""
DAMAGED = "cannot be read: `fedpeft report` on its folder says why"
BACK = '<p class="live"><a href="/">All runs</a></p>\n'
STATES = (
    "Running: the run has not ended, and this list looks again every few seconds. Completed: it ended and its result "
    "is written. Failed: it ended before that, or was cut off, and its page says why."
)
HEADS = ("run", "job", "state", "rounds", "figure", "last written")


def index(
    name: str,
    runs: Sequence[tuple[Run, Progress | None]],
    *,
    now: float,
    comparisons: Sequence[tuple[str, str, int]] = (),
) -> str:
    """Return the list of the runs, each with its progress; None: it cannot be read.

    `now` is in seconds since 1970; a comparison has a key, a job and its number of readable runs.
    """
    rows = "\n".join(_row(run, progress, now) for run, progress in runs)
    heads = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
    table = (
        f'<div class="wide"><table class="rows"><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'
        f'<p class="caption">{STATES}</p>'
        if runs
        else "<p>No run yet: <code>fedpeft simulate</code> starts one, and it appears here after a few seconds.</p>"
    )
    links = "".join(
        f'<li><a href="/compare/{key}">{escape(job)}</a>: {count} completed runs</li>'
        for key, job, count in comparisons
    )
    beside = f'<section><h2>Comparisons</h2><ul class="rejected">{links}</ul></section>' if links else ""
    title = f"Runs in {name}"
    return document(title, f"<h1>{escape(title)}</h1>\n<section>{table}</section>\n{beside}", more_style=MORE_STYLE)


def waiting(run: Run, progress: Progress | None) -> str:
    """Return the page of a run whose first round has not ended, or that cannot be read."""
    about = DAMAGED if progress is None else "No round has ended yet."
    if progress is not None and progress.ended:
        about = "No round was finished."
    return document(
        run.name, f"{top(run, progress)}<h1>{escape(run.name)}</h1>\n<p>{escape(about)}</p>", more_style=MORE_STYLE
    )


def top(run: Run, progress: Progress | None) -> str:
    """Return the first line of a run's page: the way back, the run's state, and its figures."""
    texts = [run.name]
    if progress is not None:
        texts += [progress.state, _rounds(progress), figures(progress), progress.reason]
    about = escape("; ".join(filter(None, texts)))
    return f'<p class="live"><a href="/">All runs</a> · {about}</p>\n'


def message(text: str) -> str:
    """Return a page with one sentence."""
    return document("fedpeft serve", f"<p>{escape(text)}</p>", more_style=MORE_STYLE)


def _row(run: Run, progress: Progress | None, now: float) -> str:
    link = f'<a href="/run/{run.key}">{escape(run.name)}</a>'
    ago = f"{duration(max(0.0, now - run.written))} ago"
    if progress is None:
        cells = ["", "cannot be read", "", "", ago]
    else:
        bar = ""
        if progress.rounds:
            bar = f'<progress value="{progress.round}" max="{progress.rounds}"></progress> '
        state = progress.state + ("" if progress.left is None else f", {duration(progress.left)} left")
        cells = [progress.job, state, "", progress.figures, ago]
    shown = [escape(cell) for cell in cells]
    if progress is not None:
        shown[2] = bar + escape(_rounds(progress))
    body = "".join(f'<td data-head="{head}">{cell}</td>' for head, cell in zip(HEADS[1:], shown, strict=True))
    return f'<tr><th scope="row">{link}</th>{body}</tr>'


def _rounds(progress: Progress) -> str:
    return f"{progress.round} of {progress.rounds} rounds" if progress.rounds else counted(progress.round, "round")


ALIKE = "These runs have the same method, settings and seed, or other data: there is nothing to compare."
CANNOT = "These runs cannot be compared: `fedpeft compare` on their folders says why."
LEFT_OUT = "<p>Left out for other sites or data: {}.</p>"
OLDER = "Left out as older: {}."
MAX_RUNS = 24
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The completed runs of one job, two or more, the newest first; `key` is of letters and digits only."""

    key: str
    job: str
    runs: tuple[Run, ...]
    older: int = 0  # completed runs that are not compared

    @property
    def stamps(self) -> tuple[object, ...]:
        """What changes when one of the runs does."""
        return tuple((run.key, run.stamp) for run in self.runs)


def groups(rows: Sequence[tuple[Run, Progress | None]]) -> dict[str, Group]:
    """Return by key the jobs with two or more completed runs; of many runs only the newest."""
    by_job: dict[str, list[Run]] = {}
    for run, progress in rows:
        if progress is not None and progress.state == COMPLETED:
            by_job.setdefault(progress.job, []).append(run)
    made = (
        Group(key=_key(job), job=job, runs=tuple(runs[:MAX_RUNS]), older=len(runs[MAX_RUNS:]))
        for job, runs in by_job.items()
        if len(runs) > 1
    )
    return {group.key: group for group in made}


class Comparisons:
    """Pages of groups; the last one that was drawn is kept until its runs change."""

    def __init__(self) -> None:
        self._drawn: tuple[object, Table, Picture, list[Outcome], int] | None = None

    def page(self, group: Group) -> str:
        """Return the page that compares the runs of a group; the newest represents runs that are alike."""
        older = OLDER.format(counted(group.older, "run")) * bool(group.older)
        try:
            if self._drawn is None or self._drawn[0] != group.stamps:
                histories, others = _different(group)
                outcomes = outcomes_of(histories)
                table = compared(outcomes, baseline=outcomes[0].method)
                self._drawn = group.stamps, table, picture(outcomes), outcomes, others
        except FedpeftError as error:
            log.warning("%s", error)
            return message(f"{ALIKE if str(error) == ALIKE else CANNOT} {older}".strip())
        _, table, drawn, outcomes, others = self._drawn
        left_out = LEFT_OUT.format(counted(others, "run")) * bool(others)
        left_out += f"<p>{older}</p>" * bool(older)
        return comparison_page(table, drawn, outcomes, top=BACK + left_out)


def _different(group: Group) -> tuple[Mapping[Path, History], int]:
    """Return the histories of different runs with the newest run's sites and data, the oldest first, and the number of
    runs with other sites or data."""
    histories = read_runs(run.folder for run in group.runs)
    task = _task(next(iter(histories.values())))
    newest: dict[tuple[object, ...], tuple[Path, History]] = {}
    for folder, history in histories.items():
        if _task(history) == task:
            newest.setdefault((history.method, *sorted(history.settings.items())), (folder, history))
    if len(newest) < 2:
        raise FedpeftError(ALIKE)
    others = sum(_task(history) != task for history in histories.values())
    return dict(reversed(newest.values())), others


def _task(history: History) -> tuple[object, ...]:
    """Return what runs must have in common to be compared."""
    counts = {
        (site, result.samples, tested.samples if (tested := history.tested.get(site)) else None)
        for one in history.rounds
        for site, result in one.sites.items()
    }
    measured = frozenset((metric, frozenset(sites)) for metric, sites in history.by_metric.items())
    return history.source, measured, frozenset(counts)


def _key(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


PATH = re.compile(r"/(run|compare)/([0-9a-f]{16})")
KEPT = 8  # drawn pages


class WorkspacePages:
    """The pages of a workspace of a simulator, or of a folder of runs."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._progress: dict[str, tuple[Any, Progress | None]] = {}
        self._drawn: dict[str, tuple[Any, History, dict[str, Picture]]] = {}
        self._comparisons = Comparisons()
        self._lock = threading.Lock()  # of `_progress`
        self._drawing = threading.Lock()  # matplotlib's styles are shared by all threads

    def page(self, path: str) -> tuple[str, bool] | None:
        """Return a page and whether it will change; None if there is no such page."""
        match = PATH.fullmatch(path)
        if path != "/" and not match:
            return None
        if match and match[1] == "run":
            return self._run(match[2])
        with self._lock:
            runs = find_runs(self._workspace)
            self._progress = {key: kept for key, kept in self._progress.items() if key in runs}
            rows = [(run, self._look(run)) for run in runs.values()]
            several = groups(rows)
        if not match:
            links = [(group.key, group.job, len(group.runs) + group.older) for group in several.values()]
            return index(self._workspace.resolve().name, rows, now=time.time(), comparisons=links), True
        if not (group := several.get(match[2])):
            return None
        with self._drawing:
            return self._comparisons.page(group), False

    def _run(self, key: str) -> tuple[str, bool] | None:
        with self._lock:
            run = find_runs(self._workspace).get(key)
            progress = self._look(run) if run else None
        if run is None:
            return None
        if progress is None or not progress.round:
            return waiting(run, progress), progress is None or not progress.ended
        with self._drawing:  # others read the list of runs meanwhile
            return self._drawn_page(run, progress)

    def _drawn_page(self, run: Run, progress: Progress) -> tuple[str, bool]:
        changes = not progress.ended
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

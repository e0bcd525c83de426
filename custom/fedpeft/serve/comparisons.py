# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Runs of one job beside each other: which there are, and the page that compares them, drawn when it is first read."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpeft.compare.forms import Comparison
from fedpeft.compare.outcome import Outcome
from fedpeft.compare.page import page
from fedpeft.compare.picture import picture
from fedpeft.compare.runs import of_histories
from fedpeft.compare.table import compared
from fedpeft.core.errors import FedpeftError
from fedpeft.report.history import History
from fedpeft.report.history_reader import read
from fedpeft.report.page_parts import Picture
from fedpeft.report.status.progress import COMPLETED, Progress
from fedpeft.serve.pages import BACK, message
from fedpeft.serve.runs import Run

ALIKE = "These runs have the same method, settings and seed, or other data: there is nothing to compare."
CANNOT = "These runs cannot be compared: `fedpeft compare` on their folders says why."
LEFT_OUT = "<p>{} runs of this job with other sites or data are left out.</p>"
MOST_RUNS = 24
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The completed runs of one job, two or more, the newest first; `key` is of letters and digits only."""

    key: str
    job: str
    runs: tuple[Run, ...]

    @property
    def stamps(self) -> tuple[object, ...]:
        """What changes when one of the runs does."""
        return tuple((run.key, run.stamp) for run in self.runs)


def groups(rows: Sequence[tuple[Run, Progress | None]]) -> dict[str, Group]:
    """Return, by key, the jobs of which two runs or more have completed; of many runs the newest.

    Args:
        rows: each run with its progress, the newest first; None: it cannot be read.
    """
    by_job: dict[str, list[Run]] = {}
    for run, progress in rows:
        if progress is not None and progress.state == COMPLETED:
            by_job.setdefault(progress.job, []).append(run)
    several = {job: runs[:MOST_RUNS] for job, runs in by_job.items() if len(runs) > 1}
    made = (Group(key=_key(job), job=job, runs=tuple(runs)) for job, runs in several.items())
    return {group.key: group for group in made}


class Comparisons:
    """Pages of groups; the last one that was drawn is kept until its runs change."""

    def __init__(self) -> None:
        self._drawn: tuple[object, Comparison, Picture, list[Outcome], int] | None = None

    def page(self, group: Group) -> str:
        """Return the page that compares the runs of a group; of runs that are alike the newest stands for all."""
        try:
            if self._drawn is None or self._drawn[0] != group.stamps:
                histories, others = _different(group)
                outcomes = of_histories(histories)
                table = compared(outcomes, baseline=outcomes[0].method)
                self._drawn = group.stamps, table, picture(outcomes), outcomes, others
        except FedpeftError as error:
            log.warning("%s", error)
            return message(ALIKE if str(error) == ALIKE else CANNOT)
        _, table, drawn, outcomes, others = self._drawn
        return page(table, drawn, outcomes, top=BACK + LEFT_OUT.format(others) * bool(others))


def _different(group: Group) -> tuple[Mapping[Path, History], int]:
    """Return the histories of the runs with the sites and data of the newest that differ in method, settings or seed,
    the oldest first, and the number of runs that have other sites or data."""
    histories = {run.folder: read(run.folder) for run in group.runs}
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
    """What runs must have in common to be compared."""
    counts = {
        (site, result.samples, tested.samples if (tested := history.tested.get(site)) else None)
        for one in history.rounds
        for site, result in one.sites.items()
    }
    return history.source, frozenset(history.by_metric.items()), frozenset(counts)


def _key(job: str) -> str:
    return hashlib.sha256(job.encode(errors="surrogateescape")).hexdigest()[:16]

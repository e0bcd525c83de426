# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A run's progress, read from its folder or requested from the consortium's server, and shown until the run ends.

It is read from history.json and, once the run has ended, manifest.json. A run whose process was killed leaves no
manifest. The process holds a lock, which the system releases when it ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from fedpeft.core import locks
from fedpeft.core.console import Console, cell
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import MAX_HISTORY, read_json
from fedpeft.core.locks import lock_file
from fedpeft.core.metrics import BELOW_CONSTANT, NO_BETTER, TITLES, describe_means, means_of, of_fewer_sites, title_of
from fedpeft.core.text import RECENT, counted, duration
from fedpeft.core.workspace import HISTORY, MANIFEST, OF_SIMULATOR
from fedpeft.report.history import (
    as_count,
    as_count_or_none,
    as_fraction,
    as_mapping,
    as_metric,
    as_name,
    as_number,
    as_seconds,
    as_sentence,
    by_name,
    checked,
    fail,
    must,
    need,
)

RUNNING, COMPLETED, FAILED = "running", "completed", "failed"
IDLE = "not running"  # a workspace without a run
CUT_OFF = "the run was cut off: its processes were ended from outside."
SILENT = 10, 3600.0  # durations of a round, and seconds, without a sign of life
SIMULATED = "server" / OF_SIMULATOR
PLACES = (Path(), Path("fedpeft"), SIMULATED, Path("workspace/fedpeft"))
BAR_WIDTH = 40
FAR = 10 * 365 * 86_400.0  # seconds
STYLES = {COMPLETED: "green", FAILED: "bold red"}


def _sentences(values: Any, where: str, what: str) -> tuple[str, ...]:
    if not isinstance(values, list | tuple):
        fail(where, what, values, "a list of texts")
    return tuple(as_sentence(value, where, what) for value in values)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run."""

    job: str = must(as_sentence, default="")  # its name; empty: not known yet
    # "running", "completed" or "failed"; "not running" for a workspace without a run, FLARE's own word for a job that
    # waits
    state: str = must(as_sentence, default=RUNNING)
    round: int = must(as_count, default=0)  # finished rounds
    rounds: int | None = must(as_count_or_none, default=None)  # rounds that the job has; None: not known yet
    # by metric, the mean over the sites of the last round
    means: Mapping[str, float | None] = must(by_name(as_fraction, "metric"), default_factory=dict)
    mean: float | None = must(as_fraction, default=None)  # if all sites have one metric, its mean, for older consoles
    # as in "4 of 5 sites", where a mean is not of all
    of_sites: Mapping[str, str] = must(by_name(as_sentence, "metric"), default_factory=dict)
    measured_by: str = must(as_sentence, default=title_of(()))  # all metrics in words
    seconds: float | None = must(as_seconds, default=None)  # the last round's duration
    pace: float | None = must(as_seconds, default=None)  # mean seconds of the last rounds
    ago: float | None = must(as_number, default=None)  # seconds since the last round ended
    # by site, the rounds in which its reply was left out, and the last reason
    rejected: tuple[str, ...] = must(_sentences, default=())
    reason: str = must(as_sentence, default="")  # why the run failed
    # a sentence for each site that is no better than a constant answer
    not_learning: tuple[str, ...] = must(_sentences, default=())

    @property
    def figures(self) -> str:
        """The means of the last round in words; empty: no site has told any figure."""
        if self.means or self.mean is None:
            known = {metric: mean for metric, mean in self.means.items() if metric in TITLES and mean is not None}
            return describe_means(known, self.of_sites)
        return f"{self.measured_by} {100 * self.mean:.1f} %"  # of an older server

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.state in (COMPLETED, FAILED)

    @property
    def left(self) -> float | None:
        """Seconds until the end at the pace of the last rounds; None if that is not known."""
        if self.ended or None in (self.rounds, self.pace, self.ago):
            return None
        return max(0.0, (self.rounds - self.round) * self.pace - self.ago)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, where: str = "the progress") -> Progress:
        """Build from a decoded `asdict`; keys that another version added are ignored."""
        return checked(cls, values, where)


def read_progress(folder: Path, *, now: float | None = None) -> Progress:
    """Read a run's folder at any time, also before the first round."""
    return judged(written_progress(folder, now=now), folder)


def written_progress(folder: Path, *, now: float | None = None) -> Progress:
    """Read a run's files, without asking whether its process lives."""
    history, manifest = _read(folder / HISTORY), _read(folder / MANIFEST)
    try:
        return _progress(history, manifest, _age(folder / HISTORY, now), str(folder / HISTORY))
    except FedpeftError as error:
        raise FedpeftError(f"{folder} holds no run that can be read: {error}") from error


def judged(progress: Progress, folder: Path) -> Progress:
    """Correct the progress of a run by its lock: a process holds it, or has ended without a manifest."""
    if progress.state != RUNNING:
        return progress
    alive = _writer_lives(folder)
    if not folder.is_dir() and (alive is False or not _lock_of(folder).exists()):
        return replace(progress, state=IDLE)
    if alive is False:
        if (folder / MANIFEST).exists():  # it ended between two looks
            return written_progress(folder)
        return replace(progress, state=FAILED, reason=CUT_OFF)
    rounds, seconds = SILENT
    if alive is None and progress.ago is not None and progress.ago > max(seconds, rounds * (progress.pace or 0)):
        return replace(
            progress,
            reason="no sign of life since, and this machine cannot see whether its process runs: look at the server.",
        )
    return progress


def unfinished(progress: Progress) -> str:
    """Return in words how far an incomplete run is, or why it failed; empty for a completed one."""
    if progress.state == COMPLETED:
        return ""
    rounds = f"{progress.round} of {progress.rounds} rounds" if progress.rounds else counted(progress.round, "round")
    reason = f": {progress.reason}" if progress.reason else "."
    return f"{progress.state} after {rounds}{reason}"


def _writer_lives(folder: Path) -> bool | None:
    """Return whether the process that writes a run lives; None: this machine cannot say."""
    return locks.is_known_to_be_held(_lock_of(folder))


def _lock_of(folder: Path) -> Path:
    folder = folder.resolve()
    if folder.parts[-len(SIMULATED.parts) :] == SIMULATED.parts:
        return lock_file(folder.parents[len(SIMULATED.parts) - 1])
    return folder / locks.FILE


def _progress(history: Mapping[str, Any], manifest: Mapping[str, Any], age: float | None, where: str) -> Progress:
    done = history.get("rounds", [])
    if not isinstance(done, list):
        fail(where, "'rounds'", done, "a list of rounds")
    done = [as_mapping(one, where, "a round") for one in done]
    last = done[-1] if done else {}
    told = [(_figures(one, where), as_mapping(one.get("rejected", {}), where, "'rejected'").keys()) for one in done]
    overall = told[-1][0] if told else {}
    recent = [as_seconds(one.get("seconds"), where, "'seconds'") for one in done[-RECENT:]]
    paced = [seconds for seconds in recent if seconds is not None]
    if manifest and manifest.get("status") not in (COMPLETED, FAILED):
        fail(where, "the manifest's 'status'", manifest.get("status"), f"{COMPLETED} or {FAILED}")
    training = as_mapping(as_mapping(history.get("settings", {}), where, "'settings'").get("training", {}), where, "it")
    metrics = by_name(as_metric)(history.get("metrics", {}), where, "'metrics'")
    means = means_of(metrics, overall)
    return Progress.from_json(
        {
            "job": history.get("job") or manifest.get("job", ""),
            "state": manifest.get("status", RUNNING),
            "round": len(done),
            "rounds": training.get("rounds"),
            "means": means,
            "mean": next(iter(means.values())) if len(means) == 1 else None,
            "of_sites": of_fewer_sites(metrics, told),
            "measured_by": title_of(metrics.values()),
            "seconds": last.get("seconds"),
            "pace": sum(paced) / len(paced) if paced else None,
            "ago": age if done else None,
            "rejected": _rejections(done, where),
            "reason": manifest.get("reason", ""),
            "not_learning": _not_learning(done, where),
        },
        where=where,
    )


def _figures(one: Mapping[str, Any], where: str) -> dict[str, float | None]:
    """Return the sites' figures in a round."""
    sites = as_mapping(one.get("sites", {}), where, "'sites'")
    replies = {name: as_mapping(site, where, "a site") for name, site in sites.items()}
    return {name: as_fraction(need(site, "overall", where), where, "'overall'") for name, site in replies.items()}


def _rejections(done: list[Mapping[str, Any]], where: str) -> list[str]:
    rounds_of: dict[str, list[int]] = {}
    reasons: dict[str, str] = {}
    for one in done:
        for site, reason in as_mapping(one.get("rejected", {}), where, "'rejected'").items():
            name = as_name(site, where, "a site's name")
            rounds_of.setdefault(name, []).append(as_count(need(one, "round", where), where, "'round'"))
            reasons[name] = as_sentence(reason, where, "a reason")
    return [
        f"{site}, round{'s' * (len(rounds) > 1)} {', '.join(map(str, rounds))}: {reasons[site]}"
        for site, rounds in rounds_of.items()
    ]


def _not_learning(done: list[Mapping[str, Any]], where: str) -> list[str]:
    last: dict[str, float | None] = {}
    for one in done:
        for site, result in as_mapping(one.get("sites", {}), where, "'sites'").items():
            below = as_mapping(result, where, "a site").get(BELOW_CONSTANT)
            last[as_name(site, where, "a site's name")] = as_fraction(below, where, repr(BELOW_CONSTANT))
    return [f"{site}: {NO_BETTER}" for site, below in last.items() if below == 1]


def _age(file: Path, now: float | None) -> float | None:
    try:
        return max(0.0, (time.time() if now is None else now) - file.stat().st_mtime)
    except OSError:
        return None


def _read(file: Path) -> dict[str, Any]:
    try:
        content = read_json(file, max_bytes=MAX_HISTORY)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise FedpeftError(f"{file} cannot be read ({error.strerror}): copy it from the server again.") from error
    except ValueError as error:
        raise FedpeftError(f"{file} cannot be read as JSON ({error}): copy it from the server again.") from error
    if not isinstance(content, dict):
        raise FedpeftError(f"{file} must hold a JSON object, it holds {type(content).__name__}: copy it again.")
    return content


def run_folder(named: Path) -> Path:
    """Return the run's folder: the named one, or one in a simulator workspace, run directory or downloaded job.

    A simulator workspace may have no run yet.
    """
    if not named.is_dir():
        raise (FedpeftError if named.exists() else _NoRunError)(
            f"{named} is not a folder: name a run's folder or a workspace, or for a job in a consortium its id "
            f"and --startup-kit."
        )
    for place in PLACES:
        if any((named / place / name).is_file() for name in (HISTORY, MANIFEST)):
            return named / place
    if (named / "local" / "resources.json").is_file():
        return named / SIMULATED
    if earlier := [
        path for path in sorted(named.iterdir()) if os.access(path, os.X_OK) and (path / SIMULATED).is_dir()
    ]:
        runs = counted(len(earlier), "earlier run")
        raise FedpeftError(f"{named} holds {runs}, the newest is {earlier[-1]}: name one of them.")
    raise _NoRunError(f"{named} holds no run, neither {HISTORY} nor {MANIFEST}: name a run's folder or workspace.")


class _NoRunError(FedpeftError):
    """There is no run at a place so far."""


def wait_for_run(
    named: Path, *, console: Console | None = None, pause: Callable[[], None] = lambda: time.sleep(1)
) -> Path:
    """Wait until there is a run and return its folder; `pause` is called between two checks."""
    waiting = False
    while True:
        try:
            return run_folder(named)
        except _NoRunError:
            if not waiting:
                (console or Console()).print(
                    f"waiting for a run in {named}; Ctrl-C ends this", markup=False, soft_wrap=True
                )
            waiting = True
            pause()


def show(progress: Progress, *, now: float | None = None) -> RenderableType:
    """Return the progress as the terminal shows it."""
    head = Table.grid(padding=(0, 2))
    head.add_row(
        cell(progress.job or "a job", style="bold"),
        ProgressBar(total=progress.rounds or 1, completed=progress.round if progress.rounds else 0, width=BAR_WIDTH),
        cell(_rounds_in_words(progress)),
        cell(progress.state, style=STYLES.get(progress.state, "")),
    )
    note = "" if progress.state == FAILED else progress.reason  # that of a failure is the command's error
    lines = [cell(text) for text in (figures(progress, now=now), note) if text]
    warnings = (*(f"rejected: {reason}" for reason in progress.rejected), *progress.not_learning)
    return Group(head, *lines, *(cell(warning, style="yellow") for warning in warnings))


def figures(progress: Progress, *, now: float | None = None) -> str:
    """Return the mean of the sites, last round and estimated end as text; empty before the first round."""
    parts = []
    if progress.figures:
        parts.append(f"mean {progress.figures}")
    if progress.seconds is not None:
        ago = f", {duration(progress.ago)} ago" if progress.ago is not None and not progress.ended else ""
        parts.append(f"last round {duration(progress.seconds)}{ago}")
    if progress.left is not None:
        end = (time.time() if now is None else now) + min(progress.left, FAR)
        about = f"ends about {time.strftime('%Y-%m-%d %H:%M', time.localtime(end))}"
        parts.append(f"{duration(progress.left)} left, {about if progress.left < FAR else 'more than ten years'}")
    return "; ".join(parts)


def _rounds_in_words(progress: Progress) -> str:
    if progress.rounds is not None:
        return f"{progress.round} of {progress.rounds} rounds"
    if progress.round:
        return counted(progress.round, "round")
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

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The pages of `fedpeft serve`: the list of runs, and what stands above a run's own page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedpeft.core.pace import duration
from fedpeft.report.page_parts import document
from fedpeft.report.status.progress import Progress
from fedpeft.report.status.show import figures
from fedpeft.serve.runs import Run

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
    """Return the list of the runs.

    Args:
        name: of the workspace.
        runs: each with its progress; None: it cannot be read.
        now: seconds since 1970.
        comparisons: key, job and number of runs of each that can be read.
    """
    rows = "\n".join(_row(run, progress, now) for run, progress in runs)
    heads = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
    table = (
        f'<div class="wide"><table class="rows"><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'
        f'<p class="caption">{STATES}</p>'
        if runs
        else "<p>No run yet: <code>fedpeft simulate</code> starts one, and it stands here after a few seconds.</p>"
    )
    links = "".join(
        f'<li><a href="/compare/{key}">{escape(job)}</a>: {count} completed runs</li>'
        for key, job, count in comparisons
    )
    beside = f'<section><h2>Comparisons</h2><ul class="rejected">{links}</ul></section>' if links else ""
    title = f"Runs in {name}"
    return document(title, f"<h1>{escape(title)}</h1>\n<section>{table}</section>\n{beside}", more_style=MORE_STYLE)


def waiting(run: Run, progress: Progress | None) -> str:
    """Return the page of a run that has none of its own: before its first round ends, or if it cannot be read."""
    about = DAMAGED if progress is None else "No round has ended yet."
    if progress is not None and progress.ended:
        about = "No round was finished."
    return document(
        run.name, f"{top(run, progress)}<h1>{escape(run.name)}</h1>\n<p>{escape(about)}</p>", more_style=MORE_STYLE
    )


def top(run: Run, progress: Progress | None) -> str:
    """Return the line above a run's page: the way back, the run's state, and what is expected."""
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
        bar, mean = "", ""
        if progress.rounds:
            bar = f'<progress value="{progress.round}" max="{progress.rounds}"></progress> '
        if progress.mean is not None:
            mean = f"{progress.measured_by} {100 * progress.mean:.1f} %"
        state = progress.state + ("" if progress.left is None else f", {duration(progress.left)} left")
        cells = [progress.job, state, "", mean, ago]
    shown = [escape(cell) for cell in cells]
    if progress is not None:
        shown[2] = bar + escape(_rounds(progress))
    body = "".join(f'<td data-head="{head}">{cell}</td>' for head, cell in zip(HEADS[1:], shown, strict=True))
    return f'<tr><th scope="row">{link}</th>{body}</tr>'


def _rounds(progress: Progress) -> str:
    return f"{progress.round} of {progress.rounds} rounds" if progress.rounds else f"{progress.round} rounds"

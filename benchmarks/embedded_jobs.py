# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Every embedded job of the papers' tasks, from one command each to its end: what it reaches, and how long it takes.

    python benchmarks/embedded_jobs.py                  # all fifteen: most of an hour of two cores
    python benchmarks/embedded_jobs.py --jobs vit_ham10000 f3ocus_task3 --keep runs
    python benchmarks/embedded_jobs.py --jobs fedpia_task1_albef      # or any other job that needs no files

A job is run as a user runs it, `fedpeft simulate JOB -t N`, all N sites at once. Its figures are means over its sites
after the last round, those of sites with questions and of sites with labels apart.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measured import ROOT, machine, python, show, timed

from fedpeft.core.metrics import title_of
from fedpeft.job.catalog import paper_tasks
from fedpeft.job.composing import compose
from fedpeft.report.history import History
from fedpeft.report.history_reader import read
from fedpeft.report.status import run_folder
from fedpeft.report.wording import percent

NOTE = "fedpeft simulate JOB -t N, all sites at once; minutes of a machine as busy as it was."


def jobs() -> list[str]:
    """The embedded jobs of the papers' tasks."""
    return [task.embedded for task in paper_tasks(ROOT / "app_configs") if task.embedded]


def figures(history: History) -> Iterator[tuple[str, str, str]]:
    """For each metric: its sites, their mean after the last round, and the mean of the best constant answers."""
    last = history.rounds[-1].sites
    for metric, sites in history.by_metric.items():
        reached = [last[site].overall for site in sites if site in last]
        constants = [tested.baseline for site in sites if (tested := history.tested.get(site))]
        mean = percent(statistics.fmean(reached)) if all(value is not None for value in reached) else "-"
        constant = percent(statistics.fmean(constants)) if constants and None not in constants else "-"
        yield f"{title_of([metric])} of {len(sites)} sites", mean, constant


def run(job: str, workspace: Path) -> list[tuple[str, ...]]:
    """The rows of one job.

    Raises:
        RuntimeError: it did not complete.
    """
    threads = str(len(compose(ROOT / "app_configs", job)["federation"]["sites"]))
    seconds, _ = timed(python("-m", "fedpeft.cli", "simulate", job, "-t", threads, "-w", str(workspace)))
    history = read(run_folder(workspace))
    rounds, minutes = str(len(history.rounds)), f"{seconds / 60:.1f}"
    return [(job, what, mean, constant, rounds, minutes) for what, mean, constant in figures(history)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", default=jobs(), metavar="JOB", help=", ".join(jobs()))
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the workspaces here")
    chosen = parser.parse_args()
    print(machine(), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for job in chosen.jobs:
            for row in run(job, (chosen.keep or Path(scratch)) / job):
                rows.append(row)
                print("  ".join(row), flush=True)
    columns = ("job", "measured by", "%", "best constant %", "rounds", "minutes")
    show("Embedded jobs, one seed", columns, rows, NOTE)


if __name__ == "__main__":
    main()

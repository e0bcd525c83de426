# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`fedpeft compare`: finished runs, or an experiment that is run first, over methods or over values of a setting."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import MAX_ROUNDS
from fedpeft.core.text import counted
from fedpeft.job import JOB_HELP

if TYPE_CHECKING:
    from fedpeft.compare.experiment import Key, Run
    from fedpeft.compare.grid import Axis
    from fedpeft.compare.outcome import Outcome
    from fedpeft.report.tables import Table

OUT = "comparison"
NAME = "comparison"  # of the files
LOSSES = "losses.svg"
SEEDS = 3
MAX_NUMBER = 1000  # of seeds and processes


def add(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("compare", help="compare finished runs, or run a job with several methods and seeds")
    parser.add_argument("what", nargs="+", help=f"folders of finished runs; or {JOB_HELP}")
    parser.add_argument("--methods", help="comma-separated: run the job with each, e.g. local,fedavg,fedpia,compacter")
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="'NAME: METHOD SETTING=VALUE'",
        help="a method with settings of its own, e.g. 'weights: fedpia method.pia.support=weights'",
    )
    parser.add_argument(
        "--sweep",
        metavar="SECTION.NAME=A,B,C",
        help="run each method (default: the job's own) with each value of a setting, for a figure against it",
    )
    parser.add_argument("--seeds", type=int, help=f"seeds for each method, from 0 on (default {SEEDS})")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="for all methods")
    parser.add_argument("--baseline", help="the method that the others are compared with (default: the first)")
    parser.add_argument("--last", type=int, default=1, help="rounds whose mean is a run's figure (default 1)")
    parser.add_argument("--processes", type=int, help="runs at the same time (default: one for each core)")
    parser.add_argument("--configs", type=Path, help="folder of the configuration (default: app_configs, or ours)")
    parser.add_argument("--out", type=Path, help=f"folder of tables, picture and page (default: {OUT}/<job>)")
    parser.set_defaults(command=compare)


def compare(chosen: argparse.Namespace) -> None:
    """Carry out the command."""
    from fedpeft.compare.page import losses_file, page, picture, picture_file
    from fedpeft.compare.table import compared

    for name in ("seeds", "last", "processes"):
        most = MAX_ROUNDS if name == "last" else MAX_NUMBER
        if (number := getattr(chosen, name)) is not None and not 1 <= number <= most:
            raise FedpeftError(f"--{name} is {number}, it must be from 1 to {most:,}.")
    if chosen.sweep:
        _sweep(chosen)
        return
    experiment = bool(chosen.methods or chosen.variant)
    out = chosen.out or (_default_out(chosen) if experiment else Path(OUT))
    runs = _plan(chosen) if experiment else []
    outcomes, failed = _run_plan(chosen, out, runs) if experiment else (_read_finished(chosen), [])
    short = [] if experiment else _unfinished_notes(chosen)
    if not outcomes:
        raise FedpeftError(f"no run ended: {failed[0]}")
    baseline = chosen.baseline or (runs or outcomes)[0].method
    if runs and all(run.method != baseline for run in outcomes):
        raise FedpeftError(
            f"no run of the baseline {baseline!r} ended; those of other rows are kept, name one with --baseline: "
            f"{failed[0]}"
        )
    rows = {run.method: run.row for run in runs}
    outcomes = [replace(run, method=rows.get(run.method, run.method)) for run in outcomes]
    table = compared(outcomes, baseline=rows.get(baseline, baseline), last=chosen.last)
    table = replace(table, notes=(*table.notes, *short))
    shown = page(table, picture(outcomes), outcomes)
    _show_and_write(out, table, html=shown, svg=picture_file(outcomes), failed=failed, losses=losses_file(outcomes))


def _sweep(chosen: argparse.Namespace) -> None:
    from fedpeft.compare import sweep
    from fedpeft.compare.grid import axis_of

    if chosen.baseline:
        raise FedpeftError("--baseline: a sweep has no differences; leave it out.")
    axis = axis_of(chosen.sweep, option="--sweep")
    out = chosen.out or _default_out(chosen) / axis.setting
    runs = _plan(chosen, axis)
    outcomes, failed = _run_plan(chosen, out, runs)
    if not outcomes:
        raise FedpeftError(f"no run ended: {failed[0]}")
    rows = {run.method: run.row for run in runs}
    swept = sweep.sweep_of(axis, runs, outcomes, last=chosen.last)
    swept = replace(swept, runs={rows[method]: of_values for method, of_values in swept.runs.items()})
    drawing = sweep.picture(swept, framed=True)
    _show_and_write(out, sweep.table(swept), html=sweep.page(swept), svg=drawing, failed=failed)


def _default_out(chosen: argparse.Namespace) -> Path:
    from fedpeft.job.folder import locate_job

    return Path(OUT) / locate_job(Path(chosen.what[0]), chosen.configs)[1]


def _show_and_write(
    out: Path, table: Table, *, html: str, svg: bytes, failed: Sequence[str], losses: bytes | None = None
) -> None:
    """Print a table; write it with its page and pictures."""
    from fedpeft.compare.table import csv_of, latex, markdown, show_table, write_files

    show_table(table)
    texts = {"md": markdown(table), "csv": csv_of(table), "tex": latex(table), "html": html}
    files = {f"{NAME}.{kind}": text.encode() for kind, text in texts.items()} | {f"{NAME}.svg": svg}
    if not losses and (out / f"{NAME}.html").is_file():  # those of an earlier comparison
        (out / LOSSES).unlink(missing_ok=True)
    write_files(out, files | ({LOSSES: losses} if losses else {}))
    print(f"tables and picture  {out}\npage                {out / NAME}.html")
    if failed:
        raise FedpeftError(f"{counted(len(failed), 'run')} failed, the others are kept; the first: {failed[0]}")


def _refuse_experiment_options(chosen: argparse.Namespace) -> None:
    """Refuse options of an experiment where finished runs are compared."""
    given = {"--set": chosen.set, "--configs": chosen.configs, "--seeds": chosen.seeds, "--processes": chosen.processes}
    if unread := [name for name, value in given.items() if value]:
        raise FedpeftError(
            f"{unread[0]} changes nothing where finished runs are compared: leave it out, or name a job and --methods, "
            f"--variant or --sweep."
        )


def _read_finished(chosen: argparse.Namespace) -> list[Outcome]:
    from fedpeft.compare.runs import outcomes

    folders = [Path(name) for name in chosen.what]
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise FedpeftError(
            f"{missing[0]} is no folder of a run; to run a job with several methods add --methods, e.g. "
            f"--methods local,fedavg,fedpia."
        )
    _refuse_experiment_options(chosen)
    return outcomes(folders)


def _unfinished_notes(chosen: argparse.Namespace) -> list[str]:
    """Return a note for each run that has not completed."""
    from fedpeft.report.status import read_progress, run_folder, unfinished

    states = {name: unfinished(read_progress(run_folder(Path(name)))) for name in chosen.what}
    return [f"{name}: {state}" for name, state in states.items() if state]


def _plan(chosen: argparse.Namespace, sweep: Axis | None = None) -> list[Run]:
    from fedpeft.compare.experiment import plan
    from fedpeft.compare.runs import variant_of, variants
    from fedpeft.job.folder import locate_job

    if len(chosen.what) > 1:
        raise FedpeftError(f"{chosen.what[1]!r}: with --methods, --variant or --sweep name one job.")
    configs, task = locate_job(Path(chosen.what[0]), chosen.configs)
    texts = [text for text in (chosen.methods or "").split(",") if text.strip()]
    methods = variants([*texts, *chosen.variant]) or [variant_of(configs, task)]
    names = [one.name for one in methods]
    runs = plan(configs, task, methods, range(chosen.seeds or SEEDS), chosen.set, sweep)
    chosen.baseline = {run.row: run.method for run in runs}.get(chosen.baseline, chosen.baseline)
    if chosen.baseline not in (None, *names):
        raise FedpeftError(f"--baseline {chosen.baseline!r} is none of {', '.join(names)}: name one of them.")
    return runs


def _run_plan(chosen: argparse.Namespace, out: Path, runs: Sequence[Run]) -> tuple[list[Outcome], list[str]]:
    """Run what is missing; return outcomes in the plan's order, and a sentence for each run that failed."""
    from fedpeft.compare.experiment import earlier

    processes = chosen.processes or os.cpu_count() or 1
    failed = list(run_shown(out, runs, processes=processes, say=_figures).values())
    order = {run.key: number for number, run in enumerate(runs)}
    rows = list(dict.fromkeys(run.method for run in runs))  # the first stays first even if one of its runs failed
    done = sorted(
        earlier(out, runs), key=lambda one: (rows.index(one.method), order[one.method, one.seed, one.settings])
    )
    return done, failed


def _figures(one: Outcome) -> str:
    return ", ".join(f"{one.figure(metric):.1f} %" for metric in dict.fromkeys(one.metrics.values()))


def run_shown(
    out: Path, runs: Sequence[Run], *, processes: int, say: Callable[[Outcome], str], what: str = "runs"
) -> dict[Key, str]:
    """Run what a folder lacks under a progress bar, and print what `say` returns for each run; see `run_missing`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from fedpeft.compare.experiment import earlier, run_missing
    from fedpeft.core.console import Console

    labels = {run.key: run.label for run in runs}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(what, total=len(runs) - len(earlier(out, runs)))

        def finished(one: Outcome) -> None:
            said = f"{labels[one.method, one.seed, one.settings]}: {say(one)} ({one.seconds:.0f} s)"
            progress.console.print(said, markup=False, highlight=False)
            progress.advance(bar)

        return run_missing(out, runs, processes=processes, finished=finished)

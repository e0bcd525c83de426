# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`fedpeft compare`: finished runs, or an experiment that is run first."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.core.errors import FedpeftError
from fedpeft.job import JOB_HELP

if TYPE_CHECKING:
    from fedpeft.compare.experiment import Key, Run
    from fedpeft.compare.outcome import Outcome
    from fedpeft.report.tables import Table

OUT = "comparison"
NAME = "comparison"  # of the files


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
    parser.add_argument("--seeds", type=int, default=3, help="seeds for each method, from 0 on (default 3)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="for all methods")
    parser.add_argument("--baseline", help="the method that the others are compared with (default: the first)")
    parser.add_argument("--last", type=int, default=1, help="rounds whose mean is a run's figure (default 1)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs at the same time")
    parser.add_argument("--configs", type=Path, help="folder of the configuration (default: app_configs, or ours)")
    parser.add_argument("--out", type=Path, help=f"folder of tables, picture and page (default: {OUT}/<job>)")
    parser.set_defaults(command=compare)


def compare(chosen: argparse.Namespace) -> None:
    """Carry out the command."""
    from fedpeft.compare.table import compared, grids
    from fedpeft.core.console import Console
    from fedpeft.job.composing import name_of

    for name in ("seeds", "last", "processes"):
        if getattr(chosen, name) < 1:
            raise FedpeftError(f"--{name} is {getattr(chosen, name)}, it must be at least 1.")
    experiment = bool(chosen.methods or chosen.variant)
    out = chosen.out or (Path(OUT) / name_of(Path(chosen.what[0])) if experiment else Path(OUT))
    outcomes, failed = _experiment(chosen, out) if experiment else (_finished(chosen), [])
    short = [] if experiment else _short(chosen)
    if not outcomes:
        raise FedpeftError(f"no run ended: {failed[0]}")
    table = compared(outcomes, baseline=chosen.baseline or outcomes[0].method, last=chosen.last)
    table = replace(table, notes=(*table.notes, *short))
    console = Console()
    console.print(*grids(table, console.width))
    for note in table.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    _write(out, table, outcomes)
    print(f"tables and picture  {out}\npage                {out / NAME}.html")
    if failed:
        raise FedpeftError(f"{len(failed)} runs failed, the others are kept; the first: {failed[0]}")


def _finished(chosen: argparse.Namespace) -> list[Outcome]:
    from fedpeft.compare.runs import outcomes

    folders = [Path(name) for name in chosen.what]
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise FedpeftError(
            f"{missing[0]} is no folder of a run; to run a job with several methods add --methods, e.g. "
            f"--methods local,fedavg,fedpia."
        )
    return outcomes(folders)


def _short(chosen: argparse.Namespace) -> list[str]:
    """Return a note for each run that has not completed."""
    from fedpeft.report.status import read_progress, run_folder, unfinished

    states = {name: unfinished(read_progress(run_folder(Path(name)))) for name in chosen.what}
    return [f"{name}: {state}" for name, state in states.items() if state]


def _experiment(chosen: argparse.Namespace, out: Path) -> tuple[list[Outcome], list[str]]:
    from fedpeft.compare.experiment import earlier, plan
    from fedpeft.compare.runs import variants
    from fedpeft.job.composing import default_configs, name_of

    if len(chosen.what) > 1:
        raise FedpeftError(f"{chosen.what[1]!r}: with --methods or --variant name one job.")
    texts = [text for text in (chosen.methods or "").split(",") if text.strip()]
    methods = variants([*texts, *chosen.variant])
    names = [one.name for one in methods]
    if chosen.baseline not in (None, *names):
        raise FedpeftError(f"--baseline {chosen.baseline!r} is none of {', '.join(names)}: name one of them.")
    task = name_of(Path(chosen.what[0]))
    runs = plan(chosen.configs or default_configs(), task, methods, range(chosen.seeds), chosen.set)
    failed = list(run_shown(out, runs, processes=chosen.processes, say=_figures).values())
    order = {run.key: number for number, run in enumerate(runs)}
    done = sorted(earlier(out, runs), key=lambda one: order[one.method, one.seed, one.settings])
    return done, failed


def _figures(one: Outcome) -> str:
    return ", ".join(f"{one.figure(metric):.1f} %" for metric in dict.fromkeys(one.metrics.values()))


def run_shown(
    out: Path, runs: Sequence[Run], *, processes: int, say: Callable[[Outcome], str], what: str = "runs"
) -> dict[Key, str]:
    """Run what a folder lacks below a progress bar, and say of each run what `say` returns; see `run_missing`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from fedpeft.compare.experiment import earlier, run_missing
    from fedpeft.core.console import Console

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(what, total=len(runs) - len(earlier(out, runs)))

        def finished(one: Outcome) -> None:
            said = f"{one.method}, seed {one.seed}: {say(one)} ({one.seconds:.0f} s)"
            progress.console.print(said, markup=False, highlight=False)
            progress.advance(bar)

        return run_missing(out, runs, processes=processes, finished=finished)


def _write(out: Path, table: Table, outcomes: Sequence[Outcome]) -> None:
    from fedpeft.compare.page import page, picture, picture_file
    from fedpeft.compare.table import csv_of, latex, markdown
    from fedpeft.core.files import replacing

    out.mkdir(parents=True, exist_ok=True)
    shown = page(table, picture(outcomes), outcomes)
    texts = {"md": markdown(table), "csv": csv_of(table), "tex": latex(table), "html": shown}
    contents = {kind: text.encode() for kind, text in texts.items()} | {"svg": picture_file(outcomes)}
    for kind, content in contents.items():
        with replacing(out / f"{NAME}.{kind}") as draft:
            draft.write_bytes(content)

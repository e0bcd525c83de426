# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""`fedpeft tune`: find a job's learning rate, or other settings, by its validation splits, and write them into it.

Successive halving: all settings run for few rounds, the better third continues with three times as many, until two have
run all rounds. The learning rate of each run follows the schedule of its own number of rounds.

Source: Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import is_number
from fedpeft.core.text import counted
from fedpeft.job import JOB_HELP

if TYPE_CHECKING:
    from fedpeft.compare.experiment import Run
    from fedpeft.compare.grid import Axis, Point
    from fedpeft.compare.outcome import Outcome
    from fedpeft.job.writing import FoundJob
    from fedpeft.report.tables import Table

OUT, NAME = "tuning", "tuning"
RATE, ROUNDS, SEED = "training.learning_rate", "training.rounds", "training.seed"
# sections and settings that a search cannot choose, and why
FIXED = {
    "data": "runs would not be measured alike (fedpeft compare --sweep draws a figure against a setting)",
    "federation": "it says who takes part and how a run goes on, not how sites train",
    "flare": "it changes nothing of the training",
    ROUNDS: "its steps have rounds of their own",
    SEED: "give several seeds with --seeds",
    "training.keep": "it changes nothing of the training",
    "training.validate": "its runs validate in every round",
    "training.thresholds": "they are fitted to the split on which settings are compared",
}
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the rate that the backbone declares
REDUCTION_FACTOR, FINALISTS = 3, 2  # of the settings from step to step; settings that run all rounds
TWO_SIDED = 1.96  # standard errors of a 95 % interval
FAILED = "failed"


def add(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("tune", help="find a job's learning rate on the validation splits, and write it there")
    parser.add_argument("job", type=Path, help=JOB_HELP)
    parser.add_argument(
        "--over",
        action="append",
        default=[],
        metavar="SECTION.NAME=A,B,C",
        help="values to try, of several settings all combinations (default: learning rates around the backbone's)",
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs of each setting, from the job's seed on (default 1)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="only for the search")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs at the same time")
    parser.add_argument("--configs", type=Path, help="folder of the configuration (default: app_configs, or ours)")
    parser.add_argument("--out", type=Path, help=f"folder of runs and tables (default: {OUT}/<job>)")
    parser.set_defaults(command=tune)


def tune(chosen: argparse.Namespace) -> None:
    """Carry out the command."""
    from fedpeft.compare.command import MAX_NUMBER
    from fedpeft.compare.grid import axis_of, points
    from fedpeft.compare.table import csv_of, markdown, show_table, write_files
    from fedpeft.job.writing import find_job, write_settings

    for name in ("seeds", "processes"):
        if not 1 <= (number := getattr(chosen, name)) <= MAX_NUMBER:
            raise FedpeftError(f"--{name} is {number}, it must be from 1 to {MAX_NUMBER:,}.")
    job = find_job(chosen.job, chosen.configs)
    axes = [axis_of(text, option="--over") for text in chosen.over] or [rates(job.composed(chosen.set))]
    search = Search(job=job, axes=axes, points=points(axes), seeds=chosen.seeds, overrides=chosen.set)
    out = chosen.out or Path(OUT) / job.name
    steps = run_steps(search, out, processes=chosen.processes)
    table = table_of(search, steps)
    show_table(table)
    write_files(out, {f"{NAME}.md": markdown(table).encode(), f"{NAME}.csv": csv_of(table).encode()})
    print(f"table    {out / NAME}.md")
    for sentence in write_settings(job, search.settings(steps[-1].ranked[0])):
        print(sentence)


def rates(sections: Mapping[str, Any]) -> Axis:
    """Return the learning rates around the one that the backbone of these sections declares."""
    from fedpeft.backbones import BACKBONES, BackboneSettings
    from fedpeft.compare.grid import Axis

    declared = BACKBONES.get(sections["backbone"].get("name", BackboneSettings.name)).learning_rate
    return Axis(setting=RATE, values=tuple(float(f"{declared * factor:.3g}") for factor in FACTORS))


@dataclass(frozen=True, kw_only=True)
class Search:
    """A job, the settings to try, and how often each runs."""

    job: FoundJob
    axes: Sequence[Axis]
    points: Mapping[str, Point]  # by label
    seeds: int = 1
    overrides: Sequence[str] = ()

    def __post_init__(self) -> None:
        from fedpeft.compare.grid import check_not_varied

        for axis in self.axes:
            if why := FIXED.get(axis.setting.partition(".")[0]) or FIXED.get(axis.setting):
                raise FedpeftError(f"--over {axis.setting}: a search cannot choose it, because {why}; leave it out.")
        check_not_varied(self.axes, self.overrides)

    def settings(self, label: str) -> tuple[str, ...]:
        """Return a point's settings, a backbone with the learning rate that it declares if the search sets none."""
        from fedpeft.backbones import BACKBONES
        from fedpeft.job.settings import unread_in

        own = self.points[label].overrides
        name = dict(self.points[label].values).get("backbone.name")
        rated = any(text.partition("=")[0].strip() == RATE for text in (*own, *self.overrides))
        if rated or name not in BACKBONES.names() or unread_in("training", "learning_rate", self._whole):
            return own
        return (*own, f"{RATE}={BACKBONES.get(name).learning_rate}")

    def runs(self, label: str, rounds: int) -> list[Run]:
        """Compose the runs of a setting, one for each seed."""
        from fedpeft.compare.experiment import Run, check_runs_here

        check_runs_here(self._whole)
        first, name = self._whole["training"].get("seed", 0), self.job.name
        own = [*self.overrides, f"{ROUNDS}={rounds}", "training.validate=true"]
        runs = []
        for seed in range(first, first + self.seeds):
            of_seed = [*own, f"{SEED}={seed}", *self.settings(label)]
            sections = self.points[label].sections(partial(self._composed, of_seed), job=name)
            runs.append(Run(task=name, method=label, seed=seed, sections=sections))
        return runs

    def steps(self) -> list[tuple[int, int]]:
        """Return for each step how many settings run, and for how many rounds."""
        counts, rounds = [len(self.points)], self._whole["training"]["rounds"]
        while counts[-1] > FINALISTS:
            counts.append(max(FINALISTS, math.ceil(counts[-1] / REDUCTION_FACTOR)))
        lowest = max(self._whole["schedule"].get("joins", {}).values(), default=1)  # every site must have joined
        shares = (REDUCTION_FACTOR**number for number in reversed(range(len(counts))))
        return [(count, max(lowest, math.ceil(rounds / share))) for count, share in zip(counts, shares, strict=True)]

    @cached_property
    def _whole(self) -> dict[str, Any]:
        return self._composed(self.overrides, ())

    def _composed(self, common: Sequence[str], own: Sequence[str]) -> dict[str, Any]:
        return self.job.composed([*common, *own])


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the settings of one step reached: the runs by setting, and why some failed."""

    rounds: int
    outcomes: Mapping[str, Sequence[Outcome]]
    failed: Mapping[str, str]

    def figure(self, label: str) -> float:
        """Return the mean over seeds of the sites' mean on their validation splits, in percent."""
        return statistics.fmean(run.validation_figure() for run in self.outcomes[label])

    def lacking(self, label: str) -> list[str]:
        """Return the sites that have a figure with another setting but lack one in a run with this setting."""
        known = {site for runs in self.outcomes.values() for run in runs for site in run.last_validation}
        return sorted(site for site in known if any(site not in run.last_validation for run in self.outcomes[label]))

    @property
    def ranked(self) -> list[str]:
        """The settings that ran, best first, equal ones in the order of the grid.

        One that lacks a site, for instance because its replies were refused, comes after those that have all.
        """
        return sorted(self.outcomes, key=lambda label: (not self.lacking(label), self.figure(label)), reverse=True)


def run_steps(search: Search, out: Path, *, processes: int) -> list[Step]:
    """Run all steps, but for runs that the folder has already; in the last step settings run all rounds."""
    from fedpeft.compare.command import run_shown
    from fedpeft.compare.experiment import check_read, earlier

    def say(outcome: Outcome) -> str:
        return f"{outcome.validation_figure():.1f} % on validation"

    plan = search.steps()
    # what is wrong is found before the first run starts
    check_read(search.overrides, [search.runs(label, plan[0][1])[0] for label in search.points])
    _check_writable(search)
    steps: list[Step] = []
    for number, (count, rounds) in enumerate(plan, 1):
        runs = [run for label in _next_settings(search, steps, count) for run in search.runs(label, rounds)]
        failed = run_shown(out, runs, processes=processes, say=say, what=f"step {number} of {len(plan)}")
        reasons = {label: reason for (label, *_), reason in failed.items()}
        outcomes: dict[str, list[Outcome]] = {run.method: [] for run in runs if run.method not in reasons}
        for one in earlier(out, runs):
            _check_validated(one, search.job.name)
            if one.method in outcomes:
                outcomes[one.method].append(one)
        outcomes = {label: sorted(ran, key=lambda one: one.seed) for label, ran in outcomes.items()}
        if not outcomes:
            raise FedpeftError(f"no setting ran through step {number}: {next(iter(reasons.values()))}")
        steps.append(Step(rounds=rounds, outcomes=outcomes, failed=reasons))
    return steps


def _check_writable(search: Search) -> None:
    """Refuse values that the job cannot have, or would not read, without what `--set` says for the search alone."""
    from fedpeft.job.writing import checked_settings

    for label, point in search.points.items():
        try:
            checked_settings(search.job, point.overrides)
        except FedpeftError as error:
            checked_settings(search.job, [*search.overrides, *point.overrides])  # its own error says more
            only = ", ".join(search.overrides)
            raise FedpeftError(
                f"{search.job.name} could not get {label} afterwards: {str(error).rstrip('.')}. What --set says "
                f"({only:.120}) is only for the search: write it into the job first."
            ) from error


def _check_validated(one: Outcome, job: str) -> None:
    measured = [site for site, samples in one.validated.items() if samples]
    if not measured:
        raise FedpeftError(
            f"no site of {job} has a validation split, on which a search chooses: set data.validation_fraction, or "
            f"data.validation_size of computed data."
        )
    if not one.last_validation:
        raise FedpeftError(
            f"no site of {job} with a validation split ({', '.join(measured):.200}) has a figure after "
            f"{len(one.figures)} rounds with seed {one.seed}: raise schedule.clients_per_round, or set "
            f"data.validation_fraction at every site."
        )


def _next_settings(search: Search, steps: Sequence[Step], count: int) -> list[str]:
    """Return the settings of the next step in the order of the grid."""
    best = set(steps[-1].ranked[:count] if steps else search.points)
    return [label for label in search.points if label in best]


def table_of(search: Search, steps: Sequence[Step]) -> Table:
    """Return the table of a search: a row for each setting, a column for each step, and what to know below it."""
    from fedpeft.compare.grid import shown
    from fedpeft.report.tables import Table
    from fedpeft.report.wording import DASH

    heads = [axis.setting for axis in search.axes] + [f"after {counted(step.rounds, 'round')} (%)" for step in steps]
    chosen = list(zip(*([value for _, value in point.values] for point in search.points.values()), strict=True))
    numbers: list[tuple[Any, ...]] = [tuple(v if is_number(v) else shown(v) for v in values) for values in chosen]
    texts = [[shown(value) for value in values] for values in chosen]
    for step in steps:
        figures = {label: step.figure(label) for label in step.outcomes}
        of_step = {**dict.fromkeys(step.failed, FAILED), **{label: f"{one:.1f}" for label, one in figures.items()}}
        texts.append([of_step.get(label, DASH) for label in search.points])
        numbers.append(tuple(figures.get(label) for label in search.points))
    best = list(search.points).index(steps[-1].ranked[0])
    return Table(
        title=f"{search.job.name}: mean of the sites on their validation splits",
        columns=tuple(heads),
        rows=tuple(zip(*texts, strict=True)),
        averages=0,
        best=frozenset((best, column) for column in range(len(heads))),
        notes=tuple(_notes(search, steps)),
        values=tuple(zip(heads, numbers, strict=True)),
    )


def _notes(search: Search, steps: Sequence[Step]) -> Iterator[str]:
    """Yield notes on a search: a best value at the end of the grid, settings that are equal within noise, failures."""
    from fedpeft.compare.grid import shown

    last = steps[-1]
    best, *others = last.ranked
    for axis, (name, value) in zip(search.axes, search.points[best].values, strict=True):
        if axis.numbers and value in (low := min(axis.values), max(axis.values)):
            end = "smallest" if value == low else "largest"
            yield f"{name}={shown(value)} is the {end} of the grid: name some beyond it as well, with --over."
    if others:
        apart = last.figure(best) - last.figure(others[0])
        if apart <= (noise := TWO_SIDED * math.hypot(_error(last.outcomes[best]), _error(last.outcomes[others[0]]))):
            first = last.outcomes[best][0]
            samples = sum(first.validated[site] for site in first.last_validation)
            yield (
                f"{best} and {others[0]} are {apart:.1f} points apart, within the noise of {samples:,} validation "
                f"samples ({noise:.1f}): either will do."
            )
    for step in steps:
        for label, runs in step.outcomes.items():
            after = f"after {counted(step.rounds, 'round')}"
            if lacking := step.lacking(label):
                yield f"{label} has no figure of {', '.join(lacking)} {after}, and stands below those that have all."
            if refused := sum(run.refused for run in runs):
                replies = counted(refused, "reply", "replies")
                yield f"{label}, {after}: missing or refused, and in no figure: {replies}."
    for label, reason in (pair for step in steps for pair in step.failed.items()):
        yield f"{label} failed: {reason}"


def _error(runs: Sequence[Outcome]) -> float:
    """Return the standard error of a validation figure in percent, as for a share of right answers.

    With K sites, a figure p_k on n_k samples each, it is sqrt(sum_k p_k (1 - p_k) / n_k) / K. Seeds do not lower it,
    because they share the samples.
    """
    figures = runs[0].last_validation
    variances = [p * (1 - p) / runs[0].validated[site] for site, p in figures.items()]
    return 100 * math.sqrt(sum(variances)) / len(variances)

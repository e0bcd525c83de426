# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Finished runs as the rows of a comparison: those that differ in their seed alone share a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedpeft.compare.outcome import Outcome, of_history
from fedpeft.compare.recipes import recipe_of
from fedpeft.core.errors import FedpeftError
from fedpeft.report.history import History
from fedpeft.report.history_reader import read
from fedpeft.report.status import run_folder

SEED = "training.seed"
SHOWN = 3  # settings in a row's name


def outcomes(folders: Sequence[Path]) -> list[Outcome]:
    """Read the runs in these folders.

    Raises:
        FedpeftError: there is no finished round in one of them, two are of different tasks, or two are the same.
    """
    return of_histories({folder: read(run_folder(folder)) for folder in folders})


def of_histories(histories: Mapping[Path, History]) -> list[Outcome]:
    """Return the rows of runs.

    Args:
        histories: by folder, or by what errors call the run.

    Raises:
        FedpeftError: two are of different tasks, or two are the same.
    """
    _check_one_task(histories)
    every = list(histories.values())
    found = [of_history(one, method=_row(one, every), recipe=recipe_of(one)) for one in every]
    keys = [(one.method, one.seed) for one in found]
    for folder, key in zip(histories, keys, strict=True):
        if keys.count(key) > 1:
            raise FedpeftError(
                f"{folder} has method, settings and seed of another run ({key[0]}, seed {key[1]}): name one of them."
            )
    return found


def _check_one_task(histories: Mapping[Path, History]) -> None:
    (first, one), *others = histories.items()
    for folder, other in others:
        if set(other.sites) != set(one.sites):
            raise FedpeftError(
                f"{folder} has the sites {', '.join(other.sites)}, {first} has {', '.join(one.sites)}: runs of "
                f"different sites cannot be compared."
            )
        if any(_counts(other, site) != _counts(one, site) for site in one.sites):
            raise FedpeftError(
                f"{folder} and {first} have other numbers of examples at a site: compare runs of one task."
            )
        if other.by_metric.keys() != one.by_metric.keys() or other.source != one.source:
            raise FedpeftError(f"{folder} is of {other.source!r}, {first} of {one.source!r}: compare runs of one task.")


def _counts(history: History, site: str) -> set[int | None]:
    return {result.samples for one in history.rounds if (result := one.sites.get(site))} - {None}


def _row(history: History, all_of_them: list[History]) -> str:
    """Return the method's name, and the settings in which runs of this name differ."""
    alike = [other.settings for other in all_of_them if other.method == history.method]
    names = sorted({name for settings in alike for name in settings} - {SEED})
    different = [name for name in names if len({settings.get(name) for settings in alike}) > 1]
    shown = [f"{name.rpartition('.')[2]}={history.settings.get(name, '-')}" for name in different]
    if len(shown) > SHOWN:
        shown = [*shown[:SHOWN], f"{len(shown) - SHOWN} more"]
    return history.method + (f" ({', '.join(shown)})" if shown else "")

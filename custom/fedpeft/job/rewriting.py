# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Write settings into a job that is there: its folder, and the task of which it is composed where that is its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import read_text
from fedpeft.job.admission import admit_folder
from fedpeft.job.composing import (
    PACKAGED,
    changed,
    compose,
    composed,
    configs_of,
    default_configs,
    merged,
    name_of,
    part_of,
    read_yaml,
    recipes,
    write_job,
)
from fedpeft.job.yaml_values import write

TASK = "tasks/"


@dataclass(frozen=True, kw_only=True)
class FoundJob:
    """A job that is there."""

    name: str  # as `app_configs/jobs.yml` has it
    sections: dict[str, Any]  # of its folder as it is, or composed where it was named without one
    folder: Path  # where its folder is, or goes
    configs: Path | None  # the `app_configs` folder of which it is composed; None: there is none


def find_job(job: Path, configs: Path | None = None) -> FoundJob:
    """Return a job from its folder or name; `configs` None: the `app_configs` here, or the package's."""
    if configs is None and (job / "meta.json").is_file():
        admitted = admit_folder(job)
        try:
            own, _ = configs_of(job)
        except FedpeftError:  # a folder from elsewhere, which is a job all the same
            own = None
        return FoundJob(name=admitted.at_server["job"], sections=admitted.sections, folder=job, configs=own)
    configs, name = configs or default_configs(), name_of(job)
    root = Path() if configs == PACKAGED else configs.parent
    return FoundJob(name=name, sections=compose(configs, name), folder=root / "jobs" / name, configs=configs)


def write_settings(job: FoundJob, chosen: Sequence[str]) -> list[str]:
    """Write settings as `section.name=value` into a job; return a sentence on each file.

    The folder gets them as `fedpeft jobs --set` would. The task in `app_configs/` gets them where no other job is
    composed of it and the file has no comments but at its top, so that `fedpeft jobs` writes the same folder again.
    """
    sections = composed([job.sections], chosen)
    with TemporaryDirectory() as draft:
        write_job(Path(draft), job.name, sections)
        admit_folder(Path(draft))
    values, task = ", ".join(chosen), _own_task(job)
    text = _rewritten(job, task, chosen) if task else ""
    write_job(job.folder, job.name, sections)
    said = [f"wrote    {job.folder}: {values}"]
    if task and text:
        task.write_text(text, encoding="utf-8")
        return [f"wrote    {task}: {values}", *said]
    again = " ".join(f"--set {setting}" for setting in chosen)
    kept = f"{task} is as it was" if task else "no file of app_configs is of this job alone"
    return [*said, f"{kept}: `fedpeft jobs {job.name} {again}` writes this folder again."]


def _own_task(job: FoundJob) -> Path | None:
    """Return the file of the task of which this job alone is composed; None: there is none."""
    if job.configs is None or job.configs == PACKAGED:
        return None
    own = recipes(job.configs)
    others = {part for name, parts in own.items() if name != job.name for part in parts}
    tasks = [part for part in own.get(job.name, ()) if part.startswith(TASK) and part not in others]
    files = [file for part in tasks if (file := job.configs / f"{part}.yml").is_file()]
    return files[-1] if files else None


def _rewritten(job: FoundJob, task: Path, chosen: Sequence[str]) -> str:
    """Return the text of a task with other values; empty where it would lose comments, or would not decide them."""
    assert job.configs is not None
    text, before = read_text(task), read_yaml(task)
    head = "".join(takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True)))
    if text != head + write(before):
        return ""
    after = merged(before, changed(chosen))
    parts = recipes(job.configs)[job.name]
    file = {job.configs / f"{part}.yml": part for part in parts}[task]
    whole = composed([after if part == file else part_of(job.configs, part) for part in parts])
    return head + write(after) if whole == compose(job.configs, job.name, chosen) else ""

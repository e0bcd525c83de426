# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Write a task and a job for the data of a folder: `fedpeft new`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from fedpeft.admission.job import admit_folder
from fedpeft.data.folder_sites import FolderSites, sites_in
from fedpeft.errors import FedpeftError
from fedpeft.jobs import CONFIGS, PACKAGED, RECIPES, changed, composed, merged, part_of, recipes, write_job
from fedpeft.metrics import BALANCED_ACCURACY, MACRO_F1, VALIDATION
from fedpeft.tasks import TASKS
from fedpeft.yaml_values import parse, write

TRAINING = {
    "rounds": 10,
    "local_epochs": 1,
    "batch_size": 16,
    "learning_rate": 5e-3,
    "weight_decay": 0.01,
    "warmup": 0.1,
    "seed": 0,
}
HEADER = """\
# Written by `fedpeft new` for the data in {folder!r}.
# At a hospital its own file says where its data lie (roots in local/fedpeft.json): leave root out there.
"""
FIRST_LINE = "# One line per job: the parts it is composed of.\n"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}", re.ASCII)


def look(folder: Path, overrides: Iterable[str] = ()) -> FolderSites:
    """Return what a folder holds, with the settings of the section `data` that are given as overrides.

    Raises:
        FedpeftError: see `sites_in`.
    """
    return sites_in(folder, changed(overrides).get("data"))


def check_free(name: str, out: Path) -> None:
    """Refuse what cannot be a job's name, and the name of a job that is there or comes with the package.

    A task here goes before the package's of its name, so that its jobs would then have these data.

    Args:
        name: of the task and of the job.
        out: where `app_configs/` and `jobs/` are, or are made.
    """
    if not _NAME.fullmatch(name):
        raise FedpeftError(f"{name!r:.80} cannot be a job's name: use lower-case letters, digits, _ and -, at most 60.")
    task, jobs, job = _places(name, out)
    known = recipes(jobs.parent) if jobs.is_file() else {}
    for taken in [path for path in (task, job) if path.exists()] or [jobs] * (name in known):
        raise FedpeftError(f"{taken} has {name!r} already: choose another name, or remove that one.")
    if name in recipes(PACKAGED) or name in TASKS.names() or (PACKAGED / "tasks" / f"{name}.yml").is_file():
        raise FedpeftError(f"{name!r} is a job or task that comes with the package: choose another name.")


def write_new(name: str, found: FolderSites, *, folder: Path, out: Path, overrides: Iterable[str] = ()) -> list[Path]:
    """Write `app_configs/tasks/NAME.yml`, a line in `app_configs/jobs.yml` and `jobs/NAME`.

    Args:
        name: of the task and of the job, which `check_free` has checked.
        found: what lies in the folder.
        folder: the data, for the task's first line.
        out: where `app_configs/` and `jobs/` are, or are made.
        overrides: settings as `section.name=value`, for the task; those of `data` are in what was found.

    Returns:
        what was written, the job's folder last.

    Raises:
        FedpeftError: a setting is wrong, or the job would not be admitted; nothing is written then.
    """
    task, jobs, job = _places(name, out)
    images = all(site.metric == BALANCED_ACCURACY for site in found.data)
    parts = [f"backbones/{'tiny_vit' if images else 'tiny_vilt'}", "methods/fedpia_agreement", "deployments/laptop"]
    labels = any(site.metric == MACRO_F1 for site in found.data)  # rare ones never reach a probability of one half
    training = TRAINING | ({"thresholds": VALIDATION} if labels else {})
    own = {"data": found.section, "federation": {"sites": list(found.of_sites)}, "training": training}
    chosen = {section: values for section, values in changed(overrides).items() if section != "data"}
    sections = merged(own, chosen)
    whole = composed([*(part_of(jobs.parent, part) for part in parts), sections])
    recipe = {name: [*parts, f"tasks/{name}"]}
    before = jobs.read_text(encoding="utf-8") if jobs.is_file() else FIRST_LINE
    listed = f"{before.rstrip()}\n{write(recipe, flow=None)}"
    try:
        text = write(sections)
        if parse(listed) != (parse(before) or {}) | recipe:
            raise ValueError("a line at its end is no job there")
    except ValueError as error:
        raise FedpeftError(f"{name!r} cannot be written as YAML ({error}): correct {jobs}, or the settings.") from error
    with TemporaryDirectory() as draft:
        write_job(Path(draft), name, whole)
        admit_folder(Path(draft))
    task.parent.mkdir(parents=True, exist_ok=True)
    task.write_text(HEADER.format(folder=str(folder.resolve())) + text, encoding="utf-8")
    jobs.write_text(listed, encoding="utf-8")
    write_job(job, name, whole)
    return [task, jobs, job]


def _places(name: str, out: Path) -> tuple[Path, Path, Path]:
    """Return the files of the task and of all jobs, and the folder of the job."""
    configs = out / CONFIGS
    return configs / "tasks" / f"{name}.yml", configs / RECIPES, out / "jobs" / name

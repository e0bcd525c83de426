# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Write a task and a job for the data of a folder: `fedpeft new`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fedpeft.backbones import BACKBONES, BackboneSettings
from fedpeft.backbones.backbone import WHEEL, has_wheels
from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import BALANCED_ACCURACY, MACRO_F1, VALIDATION
from fedpeft.core.settings import suggestion
from fedpeft.data import DataSettings
from fedpeft.data.folder_sites import FolderSites, sites_in
from fedpeft.job.admission import admit_folder
from fedpeft.job.composing import CONFIGS, PACKAGED, RECIPES, changed, composed, merged, part_of, recipes, write_job
from fedpeft.job.folder import as_read
from fedpeft.job.yaml_values import TASKS, parse, write

TRAINING = {
    "rounds": 10,
    "local_epochs": 1,
    "batch_size": 16,
    "weight_decay": 0.01,
    "warmup": 0.1,
    "seed": 0,
}
BACKBONE, PRETRAINED = "backbones", "mmbt_small"  # with weights of the extra `pretrained`
HEADER = """\
# Written by `fedpeft new` for the data in {folder!r}.
# At a hospital its own file says where its data lie (roots in local/fedpeft.json): leave root out there.
"""
FIRST_LINE = "# One line per job: the parts it is composed of.\n"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """What `write_new` wrote: the files of the task and of all jobs, and the folder of the job, with its backbone."""

    written: tuple[Path, Path, Path]
    backbone: str
    source: str
    tiny: bool


def look(folder: Path, overrides: Iterable[str] = (), *, out: Path = Path(), backbone: str = "") -> FolderSites:
    """Return what a folder holds, as a backbone reads it; see `fedpeft.job.folder.as_read`."""
    chosen = changed(overrides)
    found = sites_in(folder, chosen.get("data"))
    sections = merged(part_of(out / CONFIGS, _part(found, backbone)), chosen)
    share = found.section.get("unreadable", DataSettings.unreadable)
    read = [as_read(data, sections, site, share=share) for site, data in zip(found.of_sites, found.data, strict=True)]
    return replace(found, data=tuple(read))


def check_free(name: str, out: Path) -> None:
    """Refuse what cannot be a job's name, and the name of a job that is there or comes with the package.

    A task here goes before the package's of its name, so that its jobs would then have these data.
    """
    if not _NAME.fullmatch(name):
        raise FedpeftError(f"{name!r:.80} cannot be a job's name: use lower-case letters, digits, _ and -, at most 60.")
    task, jobs, job = _places(name, out)
    known = recipes(jobs.parent) if jobs.is_file() else {}
    for taken in [path for path in (task, job) if path.exists()] or [jobs] * (name in known):
        raise FedpeftError(f"{taken} has {name!r} already: choose another name, or remove that one.")
    if name in recipes(PACKAGED) or name in TASKS.names() or (PACKAGED / "tasks" / f"{name}.yml").is_file():
        raise FedpeftError(f"{name!r} is a job or task that comes with the package: choose another name.")


def backbone_parts(out: Path) -> list[str]:
    """Return the names of the parts in `app_configs/backbones`, of a place's own and of the package."""
    return sorted({file.stem for configs in (out / CONFIGS, PACKAGED) for file in configs.glob("backbones/*.yml")})


def check_part(part: str, out: Path) -> None:
    """Refuse what is not in `backbone_parts`."""
    if part not in (known := backbone_parts(out)):
        raise FedpeftError(f"--backbone is {part!r:.80}, which is no part of {BACKBONE}: {suggestion(part, known)}.")


def write_new(
    name: str, found: FolderSites, *, folder: Path, out: Path, overrides: Iterable[str] = (), backbone: str = ""
) -> NewJob:
    """Write `app_configs/tasks/NAME.yml`, a line in `app_configs/jobs.yml` and `jobs/NAME`; after an error nothing.

    Settings of `data` are in what was found. Without a part for the backbone it is that of the installed weights, or a
    tiny one of the package.
    """
    task, jobs, job = _places(name, out)
    parts = [_part(found, backbone), "methods/fedpia_agreement", "deployments/laptop"]
    labels = any(site.metric == MACRO_F1 for site in found.data)  # rare ones never reach a probability of one half
    training = TRAINING | ({"thresholds": VALIDATION} if labels else {})
    chosen = {section: values for section, values in changed(overrides).items() if section != "data"}
    own = {"data": found.section, "federation": {"sites": list(found.of_sites)}, "training": training}
    before_task = [part_of(jobs.parent, one) for one in parts]
    backbone_of = composed([own, *before_task, chosen])["backbone"]
    named = backbone_of.get("name", BackboneSettings.name)
    declared = BACKBONES.get(named)
    training["learning_rate"] = declared.learning_rate
    for setting in before_task[0].get("training", {}):
        training.pop(setting, None)  # the task stands behind the backbone, and would override it
    sections = merged(own, chosen)
    whole = composed([*before_task, sections])
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
    default = declared.default_source if declared.default_source.startswith(WHEEL) else ""
    source = backbone_of.get("source", default)
    return NewJob(written=(task, jobs, job), backbone=named, source=source, tiny=declared.tiny)


def _part(found: FolderSites, backbone: str) -> str:
    images = all(site.metric == BALANCED_ACCURACY for site in found.data)
    default = PRETRAINED if has_wheels() else "tiny_vit" if images else "tiny_vilt"
    return f"{BACKBONE}/{backbone or default}"


def _places(name: str, out: Path) -> tuple[Path, Path, Path]:
    """Return the files of the task and of all jobs, and the folder of the job."""
    configs = out / CONFIGS
    return configs / "tasks" / f"{name}.yml", configs / RECIPES, out / "jobs" / name

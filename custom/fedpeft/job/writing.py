# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Write jobs: one for the data of a folder with its task (`fedpeft new`), and other settings into one that is there.

Settings go into the job's folder, and into its task if no other job has that.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedpeft.backbones import BACKBONES, BackboneSettings
from fedpeft.backbones.backbone import WHEEL, has_wheels
from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import read_text, replacing
from fedpeft.core.metrics import BALANCED_ACCURACY, MACRO_F1, VALIDATION
from fedpeft.core.settings import suggestion
from fedpeft.data import DataSettings
from fedpeft.data.folder_sites import FolderSites, sites_in
from fedpeft.job.admission import admit_folder
from fedpeft.job.composing import (
    CONFIGS,
    PACKAGED,
    RECIPES,
    TASK,
    TASKS,
    check_current,
    check_known,
    check_used,
    compose,
    compose_sections,
    configs_of,
    default_configs,
    known_jobs,
    name_in,
    name_of,
    overlay,
    own_recipes,
    parse_overrides,
    part_of,
    parts_of,
    read_yaml,
    recipes,
    write_job,
)
from fedpeft.job.folder import fit_data
from fedpeft.job.yaml_values import parse, write

TRAINING = {"rounds": 10, "local_epochs": 1, "batch_size": 16, "weight_decay": 0.01, "warmup": 0.1, "seed": 0}
BACKBONE, PRETRAINED = "backbones", "mmbt_small"  # with weights of the extra `pretrained`
HEADER = """\
# Written by `fedpeft new` for the data in {folder!r}.
# At a hospital its site policy says where its data lie (roots in local/fedpeft.json): leave root out there.
"""
# by section the settings that a folder of data is read with; None: all
READ_FROM_FOLDER: dict[str, tuple[str, ...] | None] = {"data": None, "backbone": None, "training": ("answering",)}
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
    """Return what a folder holds, as a backbone reads it; see `fedpeft.job.folder.fit_data`."""
    chosen = parse_overrides(overrides)
    check_known(chosen)
    found = sites_in(folder, chosen.get("data"))
    sections = overlay(part_of(out / CONFIGS, _backbone_part(found, backbone)), chosen)
    check_known(sections)
    if wrong := next((name for name, own in sections.items() if not isinstance(own, Mapping | None)), ""):
        raise FedpeftError(f"{wrong} is {sections[wrong]!r:.80}, it must have settings by name: correct the part.")
    share = found.section.get("unreadable", DataSettings.unreadable)
    read = [fit_data(data, sections, site, share=share) for site, data in zip(found.of_sites, found.data, strict=True)]
    return replace(found, data=tuple(read))


def check_looked(overrides: Iterable[str]) -> None:
    """Refuse settings that `look` does not read, where no job is written with them."""
    chosen = parse_overrides(overrides)
    check_known(chosen)
    for section, names in chosen.items():
        read = READ_FROM_FOLDER.get(section, ())
        if other := [f"{section}.{name}" for name in names if read is not None and name not in read]:
            raise FedpeftError(f"{other[0]} changes nothing in a folder of data: leave it out, or name a job.")


def check_free(name: str, out: Path) -> None:
    """Refuse what cannot be a job's name, and the name of a job that is there or comes with the package.

    A task here precedes the package's task of its name, whose jobs would then have these data.
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
    """Return the names of the parts in `app_configs/backbones`, in a folder and in the package."""
    return sorted({file.stem for configs in (out / CONFIGS, PACKAGED) for file in configs.glob("backbones/*.yml")})


def check_part(part: str, out: Path) -> None:
    """Refuse what is not in `backbone_parts`."""
    if part not in (known := backbone_parts(out)):
        raise FedpeftError(f"--backbone is {part!r:.80}, which is no part of {BACKBONE}: {suggestion(part, known)}.")


def write_new(
    name: str, found: FolderSites, *, folder: Path, out: Path, overrides: Sequence[str] = (), backbone: str = ""
) -> NewJob:
    """Write `app_configs/tasks/NAME.yml`, a line in `app_configs/jobs.yml` and `jobs/NAME`; after an error nothing.

    `found` has the settings of `data`. The default backbone is that of the installed weights, or a tiny one.
    """
    task, jobs, job = _places(name, out)
    parts = [_backbone_part(found, backbone), "methods/fedpia_agreement", "deployments/laptop"]
    labels = any(site.metric == MACRO_F1 for site in found.data)  # rare ones never reach a probability of one half
    chosen = {section: values for section, values in parse_overrides(overrides).items() if section != "data"}
    own = {"data": found.section, "federation": {"sites": list(found.of_sites)}, "training": TRAINING}
    before_task = [part_of(jobs.parent, one) for one in parts]
    backbone_of = compose_sections([own, *before_task, chosen])["backbone"]
    named = backbone_of.get("name", BackboneSettings.name)
    declared = BACKBONES.get(named)
    of_backbone = before_task[0].get("training") or {}  # which the task, that comes after it, would override
    training = {**TRAINING, **({"thresholds": VALIDATION} if labels else {}), "learning_rate": declared.learning_rate}
    training = {setting: value for setting, value in training.items() if setting not in of_backbone}
    sections = overlay({**own, "training": training}, chosen)
    whole = compose_sections([*before_task, sections])
    check_used(overrides, whole, job=name)
    recipe = {name: [*parts, f"tasks/{name}"]}
    before = jobs.read_text(encoding="utf-8") if jobs.is_file() else FIRST_LINE
    listed = f"{before.rstrip()}\n{write(recipe, flow=None)}"
    try:
        text = write(sections)
        if parse(listed) != (parse(before) or {}) | recipe:
            raise ValueError("a line at its end is no job there")
    except ValueError as error:
        raise FedpeftError(f"{name!r} cannot be written as YAML ({error}): correct {jobs}, or the settings.") from error
    check_admitted(name, whole)
    with replacing(task) as task_draft, replacing(jobs) as jobs_draft, replacing(job) as draft:
        task_draft.write_text(HEADER.format(folder=str(folder.resolve())) + text, encoding="utf-8")
        jobs_draft.write_text(listed, encoding="utf-8")
        write_job(draft, name, whole)
    default = declared.default_source if declared.default_source.startswith(WHEEL) else ""
    source = backbone_of.get("source", default)
    return NewJob(written=(task, jobs, job), backbone=named, source=source, tiny=declared.tiny)


def check_admitted(name: str, sections: Mapping[str, Any]) -> None:
    """Refuse a job that server and sites would not admit, before anything is written."""
    with TemporaryDirectory() as draft:
        write_job(Path(draft), name, sections)
        admit_folder(Path(draft))


def _backbone_part(found: FolderSites, backbone: str) -> str:
    images = all(site.metric == BALANCED_ACCURACY for site in found.data)
    default = PRETRAINED if has_wheels() else "tiny_vit" if images else "tiny_vilt"
    return f"{BACKBONE}/{backbone or default}"


def _places(name: str, out: Path) -> tuple[Path, Path, Path]:
    """Return the files of the task and of all jobs, and the folder of the job."""
    configs = out / CONFIGS
    return configs / "tasks" / f"{name}.yml", configs / RECIPES, out / "jobs" / name


@dataclass(frozen=True, kw_only=True)
class FoundJob:
    """A job that exists, as a folder or in `app_configs`."""

    name: str  # as `app_configs/jobs.yml` has it
    sections: dict[str, Any]  # of its folder as it is, or composed if it was named without one
    folder: Path  # where its folder is, or will be
    configs: Path | None  # the `app_configs` folder that it is composed of; None: there is none
    parts: tuple[Mapping[str, Any], ...] = ()  # that give the sections; empty if the folder has others

    def composed(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Return the sections with settings as `section.name=value`, as `fedpeft jobs` composes them.

        A folder with other sections holds what its backbone declares, and so gets no other backbone.
        """
        if self.parts:
            return compose_sections(self.parts, overrides)
        named = parse_overrides(overrides).get("backbone", {}).get("name")
        before = self.sections["backbone"].get("name", BackboneSettings.name)
        if named not in (None, before):
            raise FedpeftError(
                f"backbone.name is {named!r:.80}, and {self.folder} has settings that {before} declares: leave "
                f"backbone.name out, or name a job of app_configs instead of the folder.",
                setting="backbone.name",
            )
        return compose_sections([self.sections], overrides)


def find_job(job: Path, configs: Path | None = None) -> FoundJob:
    """Return a job from its folder or name; `configs` None: the `app_configs` here, or the package's."""
    if configs is None and (job / "meta.json").is_file():
        admitted = admit_folder(job)
        own, name, sections = configs_of(job), name_in(job), admitted.sections
        parts = _read_parts(own, name) if own and name in known_jobs(own) else ()
        same = bool(parts) and compose_sections(parts) == sections
        return FoundJob(name=name, sections=sections, folder=job, configs=own, parts=parts if same else ())
    configs, name = configs or default_configs(), name_of(job)
    check_current(job, configs, name)
    whole = configs if configs.name not in ("", "..") else Path(os.path.abspath(configs))  # "." has no parent
    root = Path() if configs == PACKAGED else whole.parent
    parts = _read_parts(configs, name)
    return FoundJob(
        name=name, sections=compose_sections(parts), folder=root / "jobs" / name, configs=configs, parts=parts
    )


def _read_parts(configs: Path, name: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(part_of(configs, part) for part in parts_of(configs, name))


def write_settings(job: FoundJob, chosen: Sequence[str]) -> list[str]:
    """Write settings as `section.name=value` into a job; return a sentence on each file.

    The folder gets them as with `fedpeft jobs --set`. The task in `app_configs/` gets them if only this job is composed
    of it and it has no comments but at its top, so that `fedpeft jobs` writes the same folder again.
    """
    sections = checked_settings(job, chosen)
    values, task = ", ".join(chosen), _own_task(job)
    text = _rewritten(job, task, chosen) if task else ""
    with replacing(task) if task and text else nullcontext() as draft:
        if draft:
            draft.write_text(text, encoding="utf-8")
        write_job(job.folder, job.name, sections)
    said = [f"wrote    {job.folder}: {values}"]
    if task and text:
        return [f"wrote    {task}: {values}", *said]
    again = " ".join(f"--set {shlex.quote(setting)}" for setting in chosen)
    kept = f"{task} is as it was" if task else "no file of app_configs is only of this job"
    return [*said, f"{kept}: `fedpeft jobs {job.name} {again}` writes this folder again."]


def checked_settings(job: FoundJob, chosen: Sequence[str]) -> dict[str, Any]:
    """Return the sections of a job with settings as `section.name=value`, all of which it must read and be allowed."""
    sections = job.composed(chosen)
    check_used(chosen, sections, job=job.name)
    check_admitted(job.name, sections)
    return sections


def _own_task(job: FoundJob) -> Path | None:
    """Return the file of the task that only this job is composed of; None: there is none."""
    if job.configs is None or job.configs == PACKAGED:
        return None
    own = own_recipes(job.configs)
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
    after = overlay(before, parse_overrides(chosen))
    parts = recipes(job.configs)[job.name]
    file = {job.configs / f"{part}.yml": part for part in parts}[task]
    whole = compose_sections([after if part == file else part_of(job.configs, part) for part in parts])
    return head + write(after) if whole == compose(job.configs, job.name, chosen) else ""

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check a job on this machine before it runs: its folder, its data, and whether its method fits its backbones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpeft import data
from fedpeft.answering import ANSWERING
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones import BackboneSettings
from fedpeft.core.errors import DataError, FedpeftError
from fedpeft.core.metrics import ACCURACY
from fedpeft.core.settings import about, build, suggestion
from fedpeft.core.workspace import DATA_VARIABLE
from fedpeft.data.folders import dataset_folder
from fedpeft.data.manifest import FILES
from fedpeft.data.partition import centralized
from fedpeft.data.readable import fitting
from fedpeft.data.registry import DATASETS
from fedpeft.data.remarks import cut_texts_of
from fedpeft.data.settings import NATURAL, DataSettings
from fedpeft.job.composing import (
    RECIPES,
    check_current,
    check_used,
    compose,
    configs_of,
    default_configs,
    known_jobs,
    name_in,
    name_of,
    write_job,
)
from fedpeft.job.federation import site_backbone
from fedpeft.job.settings import SiteJob


def locate_job(job: Path, configs: Path | None = None) -> tuple[Path, str]:
    """Return the `app_configs` folder of a job, and its name, from its name or its folder, wherever that is.

    A folder's job is the one that its configuration names.
    """
    name, own = name_of(job), configs or default_configs()
    if configs is None and (job / "meta.json").is_file():
        name, own = name_in(job), configs_of(job) or own
        if name not in known_jobs(own):
            raise FedpeftError(
                f"{job} is job {name!r:.80}, which {own / RECIPES} does not have, so that it cannot be composed again: "
                f"edit its JSON."
            )
    check_current(job, own, name)
    return own, name


def job_folder(job: Path, overrides: Sequence[str], scratch: Path) -> Path:
    """Return a job's folder; compose one of `app_configs/` if settings change or there is no folder."""
    if not overrides and (job / "meta.json").is_file():
        return job
    configs, name = locate_job(job)
    if name not in known_jobs(configs):
        raise FedpeftError(
            f"{job} is not a FLARE job folder, it has no meta.json, and no job of {configs / RECIPES}: "
            f"{suggestion(name, known_jobs(configs))}."
        )
    sections = compose(configs, name, overrides)
    check_used(overrides, sections, job=name)
    folder = scratch / "job" / job.name
    write_job(folder, name, sections)
    return folder


def check_sites(sections: Mapping[str, Any], sites: Iterable[str]) -> None:
    """Refuse a job whose data folders are missing here or hold the same for two, or whose method does not fit.

    The backbones are built without their weights.
    """
    jobs = [SiteJob.from_sections(sections, site=site) for site in sites]
    for job in jobs:
        with about("", where=f"site {job.site}"):
            for part in job.parts:
                check_root(job, part)
    check_shared(jobs)
    pairs: dict[str, SiteJob] = {}
    for job in jobs:
        pair = (job.backbone.name, job.backbone.source, _method_settings(job), _answers_questions(job))
        pairs.setdefault(json.dumps(pair, default=str), job)
    for job in pairs.values():
        with about("", where=f"site {job.site}" * (len(pairs) > 1)):
            _check_method(job)


def _method_settings(job: SiteJob) -> dict[str, Any]:
    """Return the settings of the method at a site, by method."""
    return {job.method.name: job.method.settings_of(job.site)}


def check_root(job: SiteJob, data: DataSettings) -> None:
    """Refuse a site's folder of data that is missing, or means another one to the sites."""
    if names := DATASETS.get(data.dataset).folders_of(data.site or job.site):
        check_path("data.root", data.root)
        dataset_folder(data, names)


def check_shared(jobs: Iterable[SiteJob]) -> None:
    """Refuse sites that would each have all samples of one folder on this machine, because nothing shares it out."""
    holders: dict[tuple[Any, ...], str] = {}
    for job in jobs:
        for part in job.parts:
            site, data_set = part.site or job.site, DATASETS.get(part.dataset)
            names = data_set.folders_of(site)
            if not names or part.partition != NATURAL or site in data_set.sites:
                continue
            try:
                folder = dataset_folder(part, names).resolve()
                if names[-1] == "." and not any((folder / name).is_file() for name in FILES):
                    continue
            except DataError:  # loading it says what is wrong
                continue
            drawn = part.seed if part.samples else None
            held = (part.dataset, folder, part.exclude, part.samples, drawn)
            if (other := holders.setdefault(held, site)) != site:
                own = f"as {DATA_VARIABLE}/{site} or " * any("{site}" in name for name in data_set.folders)
                shared = ", or let data.partition share them out" * ("partition" in data_set.takes)
                raise FedpeftError(
                    f"sites {other} and {site} would both have all samples of {folder}: give each a folder of its own, "
                    f"{own}by data.sites.{site}.root{shared}."
                )


def _answers_questions(job: SiteJob) -> bool:
    """Return whether a site answers as the job chooses; labels are answered in a way of their own."""
    return DATASETS.get(job.dataset).metric == ACCURACY


def _check_method(job: SiteJob) -> None:
    from fedpeft import backbones
    from fedpeft.job.catalog import entry

    source = job.backbone.source
    for setting in ("source", "image_source"):
        if (named := getattr(job.backbone, setting)) and Path(named).is_dir():
            check_path(f"backbone.{setting}", named)
    chosen = _answers_questions(job)
    backbone = backbones.skeleton(job.backbone.name, source)
    found = entry(backbone, job.method.name, _method_settings(job), way=job.training.answering if chosen else "")
    if found.misfit:
        raise FedpeftError(f"method {job.method.name!r} does not fit backbone {job.backbone.name!r}: {found.misfit}")


def folders_of(job: SiteJob) -> list[Path]:
    """Return the folders of a site's data and of its local weights."""
    found = []
    for part in job.parts:
        if names := DATASETS.get(part.dataset).folders_of(part.site or job.site):
            found.append(dataset_folder(part, names))
    named = (job.backbone.source, job.backbone.image_source)
    return [*found, *(Path(source) for source in named if source and Path(source).is_dir())]


def check_path(setting: str, path: Path | str | None) -> None:
    """Refuse a path that means another folder to the sites, which run below the workspace."""
    if path is not None and not Path(path).is_absolute():
        raise FedpeftError(
            f"{setting} is {str(path)!r}, and the sites run in other folders: write {Path(path).resolve()}."
        )


def named_job(what: str, configs: Path | None) -> tuple[Path, str]:
    """Return the `app_configs` folder and the job that a name or folder means; "" for a folder of data.

    `./NAME` is the folder, also where a job has that name, and `jobs/NAME` the job.
    """
    folder = Path(what)
    if configs is None and (folder / "meta.json").is_file():
        return locate_job(folder)
    configs = configs or default_configs()
    name, known = name_of(what), known_jobs(configs)
    if name in known and not what.startswith(("./", "../", "/")):
        if name == folder.as_posix() and folder.is_dir():
            raise FedpeftError(f"{what!r} is a job and a folder here: write jobs/{name} or ./{name}.")
        check_current(folder, configs, name)
        return configs, name
    if folder.is_dir():
        return configs, ""
    raise FedpeftError(f"{what!r} is neither a job of {configs / RECIPES} nor a folder: {suggestion(name, known)}.")


def read_job_data(
    configs: Path, job: str, overrides: Iterable[str], *, only: str | None
) -> list[tuple[str, data.SiteData]]:
    """Return the name of the data set of each site of a job, and its data as its backbone reads them."""
    overrides = list(overrides)
    sections = compose(configs, job, overrides)
    check_used(overrides, sections, job=job)
    sites = sections["federation"]["sites"]
    if only is not None and only not in sites:
        raise FedpeftError(f"{only!r} is not a site of {job}: {suggestion(only, sites)}.")
    chosen = [only] if only is not None else sites
    jobs = [SiteJob.from_sections(sections, site=site) for site in chosen]
    return [(job.dataset, fit_data(_load_data(job), sections, job.site, share=job.data.unreadable)) for job in jobs]


def _load_data(job: SiteJob) -> data.SiteData:
    if not job.pooled:
        return replace(data.load(job.data), site=job.site)
    return centralized(job.site, [data.load(part) for part in job.pooled])


def fit_data(loaded: data.SiteData, sections: Mapping[str, Any], site: str, *, share: float = 0.0) -> data.SiteData:
    """Leave out a share of images that a site's backbone cannot take, and add notes on texts that it cuts.

    Nothing is downloaded for it; if the backbone is not here, a note says so.
    """
    backbone = build(BackboneSettings, site_backbone(sections.get("backbone"), site), section="backbone")
    way = (sections.get("training") or {}).get("answering", TrainingSettings.answering)
    try:
        notes = tuple(cut_texts_of(loaded, backbone, answers=not ANSWERING.get(way).head))
        loaded = fitting(loaded, backbone, share, download=False)
    except data.DataError:
        raise
    except FedpeftError as error:
        notes = (f"Whether the backbone takes every image and reads all of each text cannot be said: {error}",)
    return replace(loaded, notes=(*loaded.notes, *notes))

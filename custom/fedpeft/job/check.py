# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the sites of a simulated job would find out only when they start, checked on this machine before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.metrics import ACCURACY
from fedpeft.data.folders import dataset_folder
from fedpeft.data.registry import DATASETS
from fedpeft.data.settings import DataSettings
from fedpeft.job.site_job import SiteJob


def check_sites(sections: Mapping[str, Any], sites: Iterable[str]) -> None:
    """Refuse a job whose data folders are missing here, or whose method does not fit in a site's backbone.

    The backbones are built without their weights.

    Args:
        sections: of the job, those that a site receives.
        sites: its sites.

    Raises:
        FedpeftError: it names the first site that is concerned, or none where it is all of them.
    """
    jobs = [SiteJob.from_sections(sections, site=site) for site in sites]
    for job in jobs:
        for data in job.pooled or (job.data,):
            _named(_check_data, job, data)
    pairs: dict[str, SiteJob] = {}
    for job in jobs:
        pairs.setdefault(_pair(job), job)
    for job in pairs.values():
        if len(pairs) > 1:
            _named(_check_method, job)
        else:
            _check_method(job)


def _named(check: Any, job: SiteJob, *arguments: Any) -> None:
    """Name the site in what a check refuses."""
    try:
        check(job, *arguments)
    except FedpeftError as error:
        raise FedpeftError(f"site {job.site}: {error}") from error


def _pair(job: SiteJob) -> str:
    """Return backbone and method of a site as a text that is equal where they are."""
    return json.dumps((job.backbone.name, job.backbone.source, _own(job)), default=str)


def _own(job: SiteJob) -> dict[str, Any]:
    """Return the settings of the method at a site, by method."""
    return {job.method.name: job.method.settings_of(job.site)}


def _check_data(job: SiteJob, data: DataSettings) -> None:
    names = tuple(name.format(site=data.site or job.site) for name in DATASETS.get(data.dataset).folders)
    if names:
        _check_path("data.root", data.root)
        dataset_folder(data, names)


def _check_method(job: SiteJob) -> None:
    from fedpeft import backbones
    from fedpeft.job.method_catalog import entry

    source = job.backbone.source
    if source and Path(source).is_dir():
        _check_path("backbone.source", source)
    chosen = DATASETS.get(job.data.dataset).metric == ACCURACY  # labels are answered in a way of their own
    backbone = backbones.skeleton(job.backbone.name, source)
    found = entry(backbone, job.method.name, _own(job), way=job.training.answering if chosen else "")
    if found.misfit:
        raise FedpeftError(f"method {job.method.name!r} does not fit backbone {job.backbone.name!r}: {found.misfit}")


def _check_path(setting: str, path: Path | str | None) -> None:
    """Refuse a path that means another folder to the sites, which run below the workspace."""
    if path is not None and not Path(path).is_absolute():
        raise FedpeftError(
            f"{setting} is {str(path)!r}, and the sites run in other folders: write {Path(path).resolve()}."
        )

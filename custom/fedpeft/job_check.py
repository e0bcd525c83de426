# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What the sites of a simulated job would find out only when they start, checked on this machine before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fedpeft.data.folders import dataset_folder
from fedpeft.data.registry import DATASETS
from fedpeft.errors import FedpeftError
from fedpeft.site_job import SiteJob


def check_sites(sections: Mapping[str, Any], sites: Iterable[str], *, models: bool) -> None:
    """Refuse a job whose data folders are missing here, or whose method does not fit in a site's backbone.

    Args:
        sections: of the job.
        sites: its sites.
        models: whether the method is tried in the backbones, without their weights; that imports torch.

    Raises:
        FedpeftError: it says what to change; what concerns all sites is said once.
    """
    jobs = [SiteJob.from_sections(sections, site=site) for site in sites]
    for job in jobs:
        for data in job.pooled or (job.data,):
            names = tuple(name.format(site=data.site or job.site) for name in DATASETS.get(data.dataset).folders)
            if names or data.root:
                dataset_folder(data, names or (data.dataset,))
    if models:
        for job in {_pair(job): job for job in jobs}.values():
            _check_method(job)


def _pair(job: SiteJob) -> str:
    """Return backbone and method of a site as a text that is equal where they are."""
    return json.dumps((job.backbone.name, job.backbone.source, _own(job)), default=str)


def _own(job: SiteJob) -> dict[str, Any]:
    """Return the settings of the method at a site, by method."""
    return {job.method.name: job.method.settings_of(job.site)}


def _check_method(job: SiteJob) -> None:
    from fedpeft import backbones
    from fedpeft.methods.catalog import entry

    backbone = backbones.skeleton(job.backbone.name, job.backbone.source)
    found = entry(backbone, job.method.name, _own(job), way=job.training.answering)
    if found.misfit:
        raise FedpeftError(f"method {job.method.name!r} does not fit backbone {job.backbone.name!r}: {found.misfit}")

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What doctor checks: a job, a participant's start-up kit, or only this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import suggestion
from fedpeft.core.workspace import listed_classes
from fedpeft.doctor.job import Job, read_job
from fedpeft.doctor.kit import SITE, Kit, read_kit
from fedpeft.job.folder import job_folder
from fedpeft.job.site_policy import FILE, SitePolicy, read_policy

if TYPE_CHECKING:
    from fedpeft.doctor.footprint import Footprint

WORKSPACE = Path("simulator_workspace")


@dataclass(frozen=True, kw_only=True)
class Context:
    """The job, kit, sites and workspace to check.

    Args:
        job: the job to run; None: only the machine.
        kit: the participant's start-up kit; None: a simulator on this machine.
        sites: the job's sites that train on this machine.
        workspace: the simulator's folder; unused with a kit.
    """

    job: Job | None = None
    kit: Kit | None = None
    sites: tuple[str, ...] = ()
    workspace: Path = WORKSPACE

    @property
    def policy_file(self) -> Path | None:
        """The site's own file in its kit; None without a site's kit."""
        return self.kit.folder / "local" / FILE if self.kit and self.kit.role == SITE else None

    @cached_property
    def policy(self) -> SitePolicy | None:
        """The content of that file; None in the simulator, where the job's settings apply.

        Raises:
            LocalError: it is missing or cannot be used.
        """
        return read_policy(self.policy_file) if self.policy_file else None

    @property
    def downloads(self) -> bool:
        """Whether a job may fetch a backbone here."""
        return self.policy is None or self.policy.download

    @cached_property
    def footprint(self) -> Footprint:
        """Memory and disk that one of the sites needs, the one with the deepest backbone; measured once.

        Raises:
            FedpeftError: the site does not allow the job; its network cannot be built, or does not fit on the device.
        """
        from fedpeft.doctor.footprint import footprint, largest

        sections = self.job.sections
        return footprint(sections, site=largest(sections, self.sites, download=self.downloads), policy=self.policy)


def open_context(
    job: Path | None = None,
    *,
    overrides: Sequence[str] = (),
    startup_kit: Path | None = None,
    site: str | None = None,
    workspace: Path = WORKSPACE,
) -> Context:
    """Read the job and kit that the command names.

    Args:
        job: a FLARE job folder, or the name of a job of `app_configs/`.
        overrides: settings of the job as `section.name=value`.
        startup_kit: the folder of a participant's kit.
        site: one site of the job, without a kit; None: all sites are on this machine.
        workspace: the simulator's folder.

    Raises:
        FedpeftError: the job or kit does not exist, or job, kit and site contradict each other.
    """
    kit = read_kit(startup_kit) if startup_kit else None
    read = _read(job, overrides, classes=() if kit else listed_classes(workspace)) if job else None
    if overrides and not job:
        raise FedpeftError(f"--set {overrides[0]} is a setting of a job: name the job too.")
    if site and kit:
        raise FedpeftError(f"--site {site} and --startup-kit exclude each other: the kit says who it is for.")
    if site and not read:
        raise FedpeftError(f"--site {site} names a site of a job: name the job too.")
    names: tuple[str, ...]
    if kit:
        names = (kit.name,) if kit.role == SITE and read and kit.name in read.sites else ()
    elif site:
        if site not in read.sites:
            raise FedpeftError(f"--site {site} is not in federation.sites: {suggestion(site, read.sites)}.")
        names = (site,)
    else:
        names = read.sites if read else ()
    return Context(job=read, kit=kit, sites=names, workspace=workspace)


def _read(job: Path, overrides: Sequence[str], *, classes: Sequence[str]) -> Job:
    with tempfile.TemporaryDirectory() as scratch:
        return replace(read_job(job_folder(job, overrides, Path(scratch)), classes=classes), folder=job)

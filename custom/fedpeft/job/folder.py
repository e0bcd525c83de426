# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The job folder that a person means by a folder or a name, with or without changed settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import suggestion
from fedpeft.job.composing import (
    RECIPES,
    check_used,
    compose,
    configs_of,
    known_jobs,
    name_of,
    usual_configs,
    write_job,
)


def job_folder(job: Path, overrides: Sequence[str], scratch: Path) -> Path:
    """Return the job's folder, or one composed of `app_configs/` where settings change or only it has the job.

    Args:
        job: a FLARE job folder, or the name of a job of `app_configs/`, here or in the package.
        overrides: settings as `section.name=value`.
        scratch: a folder to write the composed job into.

    Raises:
        FedpeftError: it is neither, or a setting is wrong.
    """
    there = (job / "meta.json").is_file()
    if there and not overrides:
        return job
    configs, name = configs_of(job) if there else (usual_configs(), name_of(job))
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

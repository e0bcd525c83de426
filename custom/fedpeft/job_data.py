# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The data of a job's sites on this machine, for one person who holds all of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedpeft import data
from fedpeft.errors import FedpeftError
from fedpeft.federation import site_data
from fedpeft.jobs import RECIPES, compose, configs_of, known_jobs, name_of, usual_configs
from fedpeft.settings import build, suggestion


def named_job(what: str, configs: Path | None) -> tuple[Path, str]:
    """Return the `app_configs` folder and the job that are meant by a job's name or folder; "" for a folder of data.

    Args:
        what: as it was typed; `./NAME` is the folder, also where a job has that name, and `jobs/NAME` the job.
        configs: the folder that was typed; None: the usual one.

    Raises:
        FedpeftError: it is neither, or both.
    """
    folder = Path(what)
    if configs is None and (folder / "meta.json").is_file():
        return configs_of(folder)
    configs = configs or usual_configs()
    name, known = name_of(what), known_jobs(configs)
    if name in known and not what.startswith(("./", "../", "/")):
        if name == what and folder.is_dir():
            raise FedpeftError(f"{what!r} is a job and a folder here: write jobs/{what} or ./{what}.")
        return configs, name
    if folder.is_dir():
        return configs, ""
    raise FedpeftError(f"{what!r} is neither a job of {configs / RECIPES} nor a folder: {suggestion(name, known)}.")


def site_settings(configs: Path, job: str, overrides: Iterable[str], *, only: str | None) -> list[data.DataSettings]:
    """Return the section `data` of each site of a job.

    Args:
        configs: the `app_configs` folder.
        job: a name in `jobs.yml`.
        overrides: settings as `section.name=value`.
        only: this site; None: all.

    Raises:
        FedpeftError: unknown job or site, or a wrong setting.
    """
    sections = compose(configs, job, overrides)
    sites = sections["federation"]["sites"]
    if only is not None and only not in sites:
        raise FedpeftError(f"{only!r} is not a site of {job}: {suggestion(only, sites)}.")
    chosen = [only] if only is not None else sites
    return [build(data.DataSettings, site_data(sections["data"], site), section="data") for site in chosen]

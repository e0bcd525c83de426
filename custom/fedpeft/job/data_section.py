# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The data of a job's sites on this machine, for one person who holds all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpeft import data
from fedpeft.answering import ANSWERING
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones import BackboneSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build, suggestion
from fedpeft.data.cut_texts import cut_texts_of
from fedpeft.data.image_sizes import fitting
from fedpeft.job.composing import RECIPES, compose, configs_of, known_jobs, name_of, usual_configs
from fedpeft.job.federation import site_backbone, site_data


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


def of_job(
    configs: Path, job: str, overrides: Iterable[str], *, only: str | None
) -> list[tuple[data.DataSettings, data.SiteData]]:
    """Return the section `data` of each site of a job, and the site's data as its backbone reads them.

    Args:
        configs: the `app_configs` folder.
        job: a name in `jobs.yml`.
        overrides: settings as `section.name=value`.
        only: this site; None: all.

    Raises:
        FedpeftError: unknown job or site, a wrong setting, or data that cannot be read.
    """
    sections = compose(configs, job, overrides)
    sites = sections["federation"]["sites"]
    if only is not None and only not in sites:
        raise FedpeftError(f"{only!r} is not a site of {job}: {suggestion(only, sites)}.")
    chosen = [only] if only is not None else sites
    settings = {site: build(data.DataSettings, site_data(sections["data"], site), section="data") for site in chosen}
    return [(own, as_read(data.load(own), sections, site, share=own.unreadable)) for site, own in settings.items()]


def as_read(loaded: data.SiteData, sections: Mapping[str, Any], site: str, *, share: float = 0.0) -> data.SiteData:
    """Return a site's data without images that its backbone cannot take, with notes on texts that it cuts.

    Nothing is downloaded for it; where the backbone is not here, a note says so.

    Args:
        loaded: data of the site.
        sections: of its job.
        site: the name that it has there.
        share: of its images that may be left out.

    Raises:
        DataError: there are more.
    """
    backbone = build(BackboneSettings, site_backbone(sections["backbone"], site), section="backbone")
    way = (sections.get("training") or {}).get("answering", TrainingSettings.answering)
    try:
        notes = tuple(cut_texts_of(loaded, backbone, answers=not ANSWERING.get(way).head))
        loaded = fitting(loaded, backbone, share, download=False)
    except data.DataError:
        raise
    except FedpeftError as error:
        notes = (f"Whether the backbone takes every image and reads all of each text cannot be said: {error}",)
    return replace(loaded, notes=(*loaded.notes, *notes))

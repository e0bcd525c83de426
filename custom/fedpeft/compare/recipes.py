# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Which method of `app_configs/` a finished run is, as its job and the settings that it left say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedpeft.compare.published import source_of
from fedpeft.compare.variants import Variant, sections_of
from fedpeft.data import is_procedural
from fedpeft.job.composing import PACKAGED, known_jobs
from fedpeft.job.federation import site_backbone, site_data
from fedpeft.job.settings import CommonSettings
from fedpeft.report.history import History
from fedpeft.report.history_reader import flat_settings
from fedpeft.server.run_recorder import origin

OF_NO_RESULT = {f"training.{name}" for name in ("seed", "threads", "workers", "device", "keep", "images_mib")}


def recipe_of(history: History) -> str:
    """Return the method with published figures whose settings a run had; empty: it had others.

    The run must be of the packaged job of that name: its sites, data sets, backbone, and the settings of method,
    training and schedule. Other settings of the data are not in what a run leaves.

    Args:
        history: what the server wrote.
    """
    source = source_of(history.job)
    if source is None or history.job not in known_jobs(PACKAGED):
        return ""
    for method in source.figures:
        sections = sections_of(PACKAGED, history.job, Variant(name=method, method=method), [])
        if _counted(history.settings) == _settings(sections) and _made_with(history, sections):
            return method
    return ""


def _settings(sections: Mapping[str, Any]) -> dict[str, str]:
    """Return what the server would write of a job's settings."""
    method, training, schedule = CommonSettings.from_sections(sections)
    settings = {"method": asdict(method), "training": asdict(training)}
    return _counted(
        flat_settings(settings | ({"schedule": asdict(schedule)} if schedule.active else {}), "the packaged job")
    )


def _made_with(history: History, sections: Mapping[str, Any]) -> bool:
    """Return whether a run had the sites, data sets and backbones of a job."""
    sites = sections["federation"]["sites"]
    datasets = [site_data(sections["data"], site)["dataset"] for site in sites]
    backbones = [site_backbone(sections["backbone"], site)["name"] for site in sites]
    if set(history.sites) != set(sites):
        return False
    return history.source == origin(datasets, backbones, procedural=any(map(is_procedural, datasets)))


def _counted(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name not in OF_NO_RESULT}

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check the values of a job's settings by the classes that the server builds from them when the job starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.registry import Registry
from fedpeft.core.settings import about, build
from fedpeft.job.admission.refusal import AdmissionError
from fedpeft.job.composing import ARGUMENTS, CONTROLLER, SECTIONS, FlareSettings

ALLOWED = 1.0  # in place of an interval or timeout that a file does not have


def check_flare(configuration: Mapping[str, Any], file: str) -> None:
    """Refuse FLARE's intervals and timeouts that no job may have.

    Args:
        configuration: a file's, with them at its top.
        file: its name, for messages.

    Raises:
        AdmissionError: naming file and setting.
    """
    names = [field.name for field in fields(FlareSettings)]
    try:
        build(FlareSettings, {name: configuration.get(name, ALLOWED) for name in names}, section="flare", source=file)
    except FedpeftError as error:
        raise AdmissionError(f"{file}: {error}", reason="setting", setting=error.setting) from error


def check_values(parts: Iterable[Mapping[str, Any]], deployed: Iterable[str]) -> None:
    """Refuse settings that the server itself would refuse, or of which its components and the sites get other ones.

    Args:
        parts: the arguments of each of the job's components, by section.
        deployed: the participants of the deploy map.

    Raises:
        AdmissionError: naming the setting.
    """
    from fedpeft.backbones.registry import BACKBONES
    from fedpeft.backbones.settings import BackboneSettings
    from fedpeft.data.registry import DATASETS
    from fedpeft.data.settings import DataSettings
    from fedpeft.job.federation import site_backbone, site_data
    from fedpeft.job.settings import ServerJob

    sections: dict[str, Any] = {}
    for part in parts:
        for name in [name for name in part if name in SECTIONS]:
            if sections.setdefault(name, part[name]) != part[name]:
                raise AdmissionError(
                    f"the section {name} is not the same in all places of the job: write it again with `fedpeft jobs`.",
                    reason="setting",
                    setting=name,
                )
    if not set(ARGUMENTS[CONTROLLER]) & set(sections):
        return
    try:
        job = ServerJob.from_sections(sections)
        with about("federation.sites"):
            _check_sites(job.federation.sites, deployed)
        for site in job.federation.sites:
            _check_own(DataSettings, "data", site_data(sections.get("data"), site), "dataset", DATASETS)
            _check_own(BackboneSettings, "backbone", site_backbone(sections.get("backbone"), site), "name", BACKBONES)
    except FedpeftError as error:
        raise AdmissionError(str(error), reason="setting", setting=error.setting) from error


def _check_own(kind: type, section: str, values: Mapping[str, Any], key: str, registry: Registry) -> None:
    """Check what one site gets; a plugin, which may be installed there alone, is left to the site."""
    name = values.get(key)
    if not isinstance(name, str) or (name in registry.names() and not registry.is_plugin(name)):
        build(kind, values, section=section)


def _check_sites(sites: Iterable[str], deployed: Iterable[str]) -> None:
    if others := set(sites) ^ (set(deployed) - {"server"}):
        raise FedpeftError(
            f"{min(others)!r:.80} is in one of federation.sites and the deploy_map of meta.json, and not in the other: "
            f"write the job again with `fedpeft jobs`."
        )

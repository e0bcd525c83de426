# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The settings of one site in a job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedpeft import answering
from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.backbones import BackboneSettings
from fedpeft.core.settings import build, by_site
from fedpeft.data import DataSettings
from fedpeft.data.answer_space import shared_answers
from fedpeft.job.federation import sections_by_site, several_backbones, site_backbone, site_data
from fedpeft.job.settings import CommonSettings
from fedpeft.job.site_policy import SitePolicy, check_plugins
from fedpeft.methods.settings import MethodSettings, check_backbones
from fedpeft.scheduling.settings import ScheduleSettings

SECTIONS = ("backbone", "method", "training", "data", "schedule")


def digest_of(sections: Mapping[str, Any], *, job: str | None) -> str:
    """SHA-256 of a job as deployed: equal at all sites unless the server sent them different jobs.

    Args:
        sections: of the job, with `data.sites` and `backbone.sites` of every site, before a site replaces values by its
            own.
        job: FLARE's job id.
    """
    facts = {"job": job, "sections": {name: sections.get(name) or {} for name in SECTIONS}}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def pooled_data(section: Mapping[str, Any], own: DataSettings) -> tuple[DataSettings, ...]:
    """Return the settings of the sites whose data a site holds, as each of them would load its own.

    Args:
        section: `data` of the job.
        own: of the site that holds them.
    """
    parts = ({**site_data(section, name), "pool": []} for name in own.pool)
    return tuple(build(DataSettings, part, section="data") for part in parts)


@dataclass(frozen=True, kw_only=True)
class SiteJob:
    """A job's sections as checked settings, with the site's own entries of `data.sites` and `backbone.sites` applied.

    What concerns all sites of the section `federation`, which a site does not receive, `fedpeft.job.settings.ServerJob`
    checks at the server.

    Args:
        site: the site's name in the consortium.
        backbone, method, training, data, schedule: see their classes.
        pooled: the section `data` of each site whose data this one holds (`data.pool`).
        single_sites: names of the settings of the job that name single sites, as far as they are set.
        answers: what the head of every site tells apart, where it is federated; None: each site has its own.
    """

    site: str
    backbone: BackboneSettings
    method: MethodSettings
    training: TrainingSettings
    data: DataSettings
    schedule: ScheduleSettings
    pooled: tuple[DataSettings, ...] = ()
    single_sites: tuple[str, ...] = ()
    answers: tuple[str, ...] | None = None

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any], *, site: str, policy: SitePolicy | None = None) -> SiteJob:
        """Build and check the settings from a job's sections.

        Args:
            sections: of the job.
            site: the site's name in the consortium.
            policy: the site's own file: no plugin is imported that it does not list; None in the simulator.

        Raises:
            FedpeftError: a section or setting is missing or wrong; names it.
        """
        if policy:
            check_plugins(policy, sections)
        method, training, schedule = CommonSettings.from_sections(sections)
        backbone = build(BackboneSettings, site_backbone(sections.get("backbone"), site), section="backbone")
        answering.check_backbone(training.answering, backbone.name)
        if several_backbones(sections["backbone"]):
            check_backbones(method)
        own = build(DataSettings, site_data(sections.get("data"), site), section="data")
        parts: dict[str, Any] = {
            "backbone": backbone,
            "method": method,
            "training": training,
            "data": own,
            "schedule": schedule,
        }
        single = (f"{section}.{name}" for section, settings in parts.items() for name in by_site(settings))
        return cls(
            site=site,
            backbone=backbone,
            method=method,
            training=training,
            data=own,
            pooled=pooled_data(sections["data"], own),
            schedule=schedule,
            single_sites=(*sections_by_site(sections), *single),
            answers=shared_answers(own, sections["data"].get("sites", {}), federated=method.federates_head),
        )

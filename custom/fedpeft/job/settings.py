# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The sections of a job that server and sites both receive, as checked settings, and the job as its server has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedpeft.answering.training_settings import TrainingSettings
from fedpeft.core.errors import FedpeftError
from fedpeft.core.settings import build
from fedpeft.job.federation import FederationSettings, check_joins
from fedpeft.job.site_policy import MIN_MEMBERS
from fedpeft.methods.settings import MethodSettings
from fedpeft.scheduling.settings import ScheduleSettings, schedule_of


class CommonSettings(NamedTuple):
    """What server and sites both receive of a job.

    The method's own settings are left to `MethodSettings.check_settings`, which imports its code: a job is composed
    with it, and a site trains with it, but neither the server nor a site's FLARE process needs it.
    """

    method: MethodSettings
    training: TrainingSettings
    schedule: ScheduleSettings

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any]) -> CommonSettings:
        """Build and check the settings from a job's sections.

        Args:
            sections: `method` and `training`, and `schedule` where layers are scheduled.

        Raises:
            FedpeftError: a section or setting is missing or wrong, or does not go with another; names it.
        """
        method = build(MethodSettings, sections.get("method"), section="method")
        training = build(TrainingSettings, sections.get("training"), section="training")
        schedule = schedule_of(sections.get("schedule", {}), method.method)
        method.check_schedule(active=schedule.active, joins=schedule.joins)
        return cls(method, training, schedule)


@dataclass(frozen=True, kw_only=True)
class ServerJob:
    """A job's sections as checked settings, as far as its server receives them: what data and backbones are, and which
    go together, `fedpeft.job.site_job.SiteJob` checks at each site.

    Args:
        federation, method, training, schedule: see their classes.
    """

    federation: FederationSettings
    method: MethodSettings
    training: TrainingSettings
    schedule: ScheduleSettings

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any]) -> ServerJob:
        """Build and check the settings from a job's sections.

        Raises:
            FedpeftError: a section or setting is missing or wrong, or does not go with another; names it.
        """
        federation = build(FederationSettings, sections.get("federation"), section="federation")
        method, training, schedule = CommonSettings.from_sections(sections)
        check_secure_sum(method, schedule, federation)
        check_joins(schedule.joins, federation, rounds=training.rounds)
        return cls(federation=federation, method=method, training=training, schedule=schedule)


def check_secure_sum(method: MethodSettings, schedule: ScheduleSettings, federation: FederationSettings) -> None:
    """Refuse a job whose other settings are incompatible with a secure sum.

    Raises:
        FedpeftError: naming the setting.
    """
    if not method.secure_sum:
        return
    if schedule.active:
        raise FedpeftError(
            "method.secure_sum adds up what all sites send, and a layer that one site trains alone would be "
            "visible: use schedule.solver='all'."
        )
    if schedule.clients_per_round or schedule.joins:
        raise FedpeftError(
            "method.secure_sum needs the same sites in every round, since differences between the sums of two groups "
            "show single sites: set schedule.clients_per_round to 0 and leave schedule.joins out."
        )
    if federation.needed < len(federation.sites):
        raise FedpeftError("method.secure_sum needs every site in every round: set federation.quorum to 0.")
    if len(federation.sites) < MIN_MEMBERS:
        raise FedpeftError(
            f"method.secure_sum needs at least {MIN_MEMBERS} sites, because each of two learns the other's adapter; "
            f"federation.sites has {len(federation.sites)}."
        )

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The names of a job's settings, `section.name`, which may leave a site although values may not."""

from __future__ import annotations

import dataclasses
from functools import cache


@cache
def names() -> frozenset[str]:
    """Return every section and every setting in it that a dataclass declares."""
    from fedpeft.alignment.settings import PIASettings, RobustSettings
    from fedpeft.answering.training_settings import TrainingSettings
    from fedpeft.backbones import BackboneSettings
    from fedpeft.data import DataSettings
    from fedpeft.job.composing import FlareSettings
    from fedpeft.job.federation import FederationSettings
    from fedpeft.methods.settings import MethodSettings
    from fedpeft.scheduling.settings import ScheduleSettings

    sections = {
        "backbone": BackboneSettings,
        "method": MethodSettings,
        "method.pia": PIASettings,
        "method.robust": RobustSettings,
        "training": TrainingSettings,
        "data": DataSettings,
        "schedule": ScheduleSettings,
        "federation": FederationSettings,
        "flare": FlareSettings,
    }
    fields = {f"{section}.{field.name}" for section, cls in sections.items() for field in dataclasses.fields(cls)}
    return frozenset(fields | set(sections) | {"backbone.sites", "data.sites"})


def known(name: object) -> bool:
    """Return whether this is the name of a declared setting or section."""
    return isinstance(name, str) and name in names()


def declared_part(path: str) -> str:
    """Return the longest declared prefix of a path, or an empty text: names below it are chosen by the job.

    Of `method.settings.houlsby.width` it is `method.settings`.
    """
    parts = path.split(".")
    candidates = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((candidate for candidate in candidates if candidate in names()), "")

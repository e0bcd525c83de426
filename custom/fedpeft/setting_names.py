# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The names of a job's settings, `section.name`: what may be said of a setting without saying its value."""

from __future__ import annotations

import dataclasses
from functools import cache


@cache
def names() -> frozenset[str]:
    """Every section and every setting in it that a dataclass declares."""
    from fedpeft.alignment.robust_settings import RobustSettings
    from fedpeft.alignment.settings import PIASettings
    from fedpeft.backbones import BackboneSettings
    from fedpeft.data import DataSettings
    from fedpeft.federation import FederationSettings
    from fedpeft.jobs import FlareSettings
    from fedpeft.methods.settings import MethodSettings
    from fedpeft.scheduling.settings import ScheduleSettings
    from fedpeft.training_settings import TrainingSettings

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
    return frozenset(fields | set(sections) | {"data.sites"})


def known(name: object) -> bool:
    """Whether this is the name of a declared setting or section."""
    return isinstance(name, str) and name in names()


def declared_part(path: str) -> str:
    """The longest beginning of a path that is declared, empty if there is none: names below it are a job's own words.

    Args:
        path: dotted, e.g. `method.settings.houlsby.width`, whose declared part is `method.settings`.
    """
    parts = path.split(".")
    candidates = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((candidate for candidate in candidates if candidate in names()), "")

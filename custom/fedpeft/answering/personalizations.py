# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Models of a site's own beside the exchanged one, the values of `training.personalization`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Personalization:
    """How a site gets a model of its own.

    Args:
        home: the class that does it, "package.module:object" (`fedpeft.site.personalization`).
        max_kept: the largest part of its own adapter in what a site starts a round from.
    """

    home: str = "fedpeft.site.personalization:OfRound"
    max_kept: float = 0.0


NONE = "none"
PERSONALIZATIONS: dict[str, Personalization] = {
    NONE: Personalization(),
    "ditto": Personalization(home="fedpeft.site.ditto:Ditto"),
    "fedala": Personalization(home="fedpeft.site.fedala:FedALA", max_kept=1.0),
}

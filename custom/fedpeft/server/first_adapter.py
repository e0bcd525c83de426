# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Whether all sites start from the adapter of one of them, and whose that is."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedpeft.errors import FedpeftError
from fedpeft.layer_matching import SETTING, all_layers
from fedpeft.methods.settings import MethodSettings
from fedpeft.scheduling.settings import ScheduleSettings


def is_needed(method: MethodSettings, schedule: ScheduleSettings) -> bool:
    """Return whether one site sends its first adapter to all: the server must have tensors that no site may send."""
    partial = schedule.active or method.matched_layers is not None
    return method.exchanges and (partial or method.secure_sum)


def sender(
    keys: Mapping[str, Collection[str]], method: MethodSettings, problems: Mapping[str, str] | None = None
) -> str:
    """Return the site whose first adapter it is: the first one that has all layers.

    Args:
        keys: by site, of the tensors that it sends; at least one site.
        method: of the job.
        problems: by site, why others take no part.

    Raises:
        FedpeftError: no site has all layers.
    """
    deepest = method.matched_layers
    able = (site for site, own in keys.items() if deepest is None or all_layers(own, deepest))
    if (first := next(able, None)) is None:
        raise FedpeftError(
            f"no site that takes part has all {deepest} layers of {SETTING}, so that nobody has the first values of "
            f"some: wait until one that does is connected, or set {SETTING} to the layers of the deepest backbone."
            + "".join(f" {problem.rstrip('.')}." for problem in (problems or {}).values()),
            setting=SETTING,
        )
    return first

# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check that the tracker that a job names is installed and configured where its server will run."""

from __future__ import annotations

from collections.abc import Iterator

from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, passed
from fedpeft.doctor.kit import SERVER
from fedpeft.job.trackers import NONE, SETTING, usable


def check(context: Context) -> Iterator[Finding]:
    """Check `federation.tracking` with a server's kit, or where all sites are on this machine.

    Raises:
        FedpeftError: the tracker cannot be used; the message has the remedy.
    """
    here = context.kit.role == SERVER if context.kit else context.job and context.sites == context.job.sites
    if context.job is None or not here:
        return
    name = context.job.server["federation"].get("tracking", NONE)
    if name != NONE:
        yield passed(f"{SETTING}: {usable(name).title} is installed and configured.")

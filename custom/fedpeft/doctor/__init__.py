# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Checks of what would keep a job from running on this machine, beyond `nvflare preflight-check`.

A group of checks is one file with `check(context) -> Iterator[Finding]` and one line below.
"""

from fedpeft.doctor.context import Context, open_context
from fedpeft.doctor.finding import Finding
from fedpeft.doctor.registry import examine, register

__all__ = ["Context", "Finding", "examine", "open_context", "register"]

register("versions", "fedpeft.doctor.versions:check")
register("job", "fedpeft.doctor.job:check")
register("admission", "fedpeft.doctor.admission:check")
register("tracking", "fedpeft.doctor.tracking:check")
register("allow-list", "fedpeft.doctor.allow_list:check")
register("privacy", "fedpeft.doctor.privacy:check")
register("clock", "fedpeft.doctor.clock:check")
register("ports", "fedpeft.doctor.ports:check")
register("site-file", "fedpeft.doctor.site_file:check")
register("data", "fedpeft.doctor.data:check")
register("backbone", "fedpeft.doctor.backbone:check")
register("memory", "fedpeft.doctor.memory:check")
register("disk", "fedpeft.doctor.disk:check")

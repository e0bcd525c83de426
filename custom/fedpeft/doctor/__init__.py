# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Checks of what would keep a job from running on this machine, beyond `nvflare preflight-check`.

A group of checks is a function `check(context) -> Iterator[Finding]` and one line below.
"""

from fedpeft.doctor.context import Context, Finding, open_context
from fedpeft.doctor.registry import examine, register

__all__ = ["Context", "Finding", "examine", "open_context", "register"]

register("versions", "fedpeft.doctor.machine:check_versions")
register("job", "fedpeft.doctor.context:check_job")
register("admission", "fedpeft.doctor.policies:check_admission")
register("tracking", "fedpeft.doctor.content:check_tracking")
register("allow-list", "fedpeft.doctor.policies:check_allow_list")
register("privacy", "fedpeft.doctor.policies:check_privacy")
register("clock", "fedpeft.doctor.machine:check_clock")
register("ports", "fedpeft.doctor.machine:check_ports")
register("site-file", "fedpeft.doctor.policies:check_site_file")
register("data", "fedpeft.doctor.content:check_data")
register("backbone", "fedpeft.doctor.content:check_backbone")
register("memory", "fedpeft.doctor.memory:check_memory")
register("disk", "fedpeft.doctor.machine:check_disk")

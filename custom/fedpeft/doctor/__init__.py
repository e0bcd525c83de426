# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What keeps a job from running on this machine, found before it starts; what `nvflare preflight-check` does not see.

A group of checks is one file with `check(case) -> Iterator[Finding]` and one line below.
"""

from fedpeft.doctor.case import Case, open_case
from fedpeft.doctor.finding import Finding
from fedpeft.doctor.registry import examine, register

__all__ = ["Case", "Finding", "examine", "open_case", "register"]

register("versions", "fedpeft.doctor.versions")
register("job", "fedpeft.doctor.job")
register("admission", "fedpeft.doctor.admission")
register("allow-list", "fedpeft.doctor.allow_list")
register("privacy", "fedpeft.doctor.privacy")
register("clock", "fedpeft.doctor.clock")
register("ports", "fedpeft.doctor.ports")
register("site-file", "fedpeft.doctor.site_file")
register("data", "fedpeft.doctor.data")
register("backbone", "fedpeft.doctor.backbone")
register("memory", "fedpeft.doctor.memory")
register("disk", "fedpeft.doctor.disk")

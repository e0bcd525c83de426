# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check a site's own file, `local/fedpeft.json`, and which settings of the job it would refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from fedpeft.doctor.context import Context
from fedpeft.doctor.finding import Finding, failed, passed
from fedpeft.job.site_job import SiteJob
from fedpeft.job.site_policy import SitePolicy
from fedpeft.protocol.site_check import refusals


def check(context: Context) -> Iterator[Finding]:
    """Check the file in a site's kit, and every setting of the job that it does not allow; nothing in the simulator."""
    if context.policy_file is None:
        return
    policy = context.policy
    differing = [f.name for f in dataclasses.fields(policy) if getattr(policy, f.name) != getattr(SitePolicy(), f.name)]
    changed = f"not default: {', '.join(differing)}" if differing else "all values are defaults"
    yield passed(f"{context.policy_file} can be used; {changed}.")
    for site in context.sites:
        refused = list(refusals(policy, SiteJob.from_sections(context.job.sections, site=site, policy=policy)))
        for setting, why in refused:
            yield failed(f"{setting} {why}: change the job, or {context.policy_file}.")
        if not refused:
            yield passed("this file allows all settings of the job.")

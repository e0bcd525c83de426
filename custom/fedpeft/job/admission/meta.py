# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Check a job's meta.json: name, participants, number of sites needed, and GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedpeft.job.admission.shape import check_keys, is_count, is_whole, wrong
from fedpeft.job.admission.strict_json import check_texts

META = "meta.json"
APP = "app"
META_KEYS = ("name", "resource_spec", "min_clients", "deploy_map")
# fields that the server adds to meta.json before it sends it to a site; none selects a program or a container
BOOKKEEPING = (
    "approvals",
    "cloned_from",
    "content_location",
    "data_storage_format",
    "duration",
    "job_clients",
    "job_deploy_detail",
    "job_folder_name",
    "job_id",
    "last_schedule_time",
    "result_location",
    "schedule_count",
    "schedule_history",
    "start_time",
    "status",
    "study",
    "submit_time",
    "submit_time_iso",
    "submitter_name",
    "submitter_org",
    "submitter_role",
)
MAX_SITES = 1000
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_GPUS = {"num_of_gpus": 1024, "mem_per_gpu_in_GiB": 10_000}  # the largest that a job may ask for


def admit_meta(meta: Mapping[str, Any], file: str = META) -> None:
    """Check the content of meta.json: the app is deployed to the server and to sites by name, and may request GPUs.

    A launcher, a container image, a privacy scope, a job id or statistics are refused.
    """
    check_keys(meta, META_KEYS, file, required=("name", "min_clients", "deploy_map"), reason="meta")
    check_texts(meta, file)
    deployed = meta["deploy_map"]
    participants = deployed.get(APP) if isinstance(deployed, dict) and len(deployed) == 1 else None
    if not isinstance(participants, list) or not 2 <= len(participants) <= MAX_SITES:
        raise wrong(file, "deploy_map", deployed, 'an object like {"app": ["server", "site"]}')
    for name in participants:
        if not isinstance(name, str) or not _SITE.fullmatch(name) or participants.count(name) > 1:
            raise wrong(file, "deploy_map", name, "the server and each site once, by name")
    if "server" not in participants:
        raise wrong(file, "deploy_map", participants, "the server and each site once, by name")
    if not isinstance(meta["name"], str) or not 0 < len(meta["name"]) <= 200:
        raise wrong(file, "name", meta["name"], "a short text")
    if not is_whole(meta["min_clients"]) or not 1 <= meta["min_clients"] < len(participants):
        raise wrong(file, "min_clients", meta["min_clients"], f"a number from 1 to {len(participants) - 1}")
    resources = meta.get("resource_spec", {})
    if not isinstance(resources, dict) or not set(resources) <= set(participants):
        raise wrong(file, "resource_spec", resources, "an object with names of sites")
    for spec in resources.values():
        known = isinstance(spec, dict) and set(spec) <= set(_GPUS)
        if not known or not all(is_count(value, _GPUS[name]) for name, value in spec.items()):
            raise wrong(file, "resource_spec", spec, f"an object of {' and '.join(_GPUS)}, each a number")

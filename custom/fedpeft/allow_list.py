# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FLARE loads only listed classes for a job without code of its own: the list that a site needs for fedpeft's jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedpeft.errors import FedpeftError
from fedpeft.files import write_json

PREFIX = "fedpeft."
KEY = "class_allow_list"


def resources() -> dict[str, Any]:
    """FLARE's own list with fedpeft appended, enforced."""
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    return {
        "format_version": 2,
        KEY: [*DEFAULT_CLASS_ALLOW_LIST, PREFIX],
        "class_list_enforcement_mode": "enforce",
    }


def seed_workspace(workspace: Path) -> Path:
    """Let a simulator workspace load fedpeft's classes; what its `local/resources.json` already says is kept.

    Raises:
        FedpeftError: the file is there and is no JSON object.
    """
    file = workspace / "local" / "resources.json"
    wanted = resources()
    if file.exists():
        try:
            present = json.loads(file.read_text())
            listed = present.get(KEY, wanted[KEY])
        except (ValueError, AttributeError) as error:
            raise FedpeftError(f"{file} is no JSON object ({error}): mend or remove it.") from error
        wanted = {**wanted, **present, KEY: listed if PREFIX in listed else [*listed, PREFIX]}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, wanted)
    return file

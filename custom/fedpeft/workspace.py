# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a simulator workspace needs under `local/`: the allow-list for fedpeft's classes, and a readable console.

FLARE loads only listed classes for a job that brings no code of its own.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from fedpeft.errors import FedpeftError
from fedpeft.files import write_json

COMPONENTS = (
    "fedpeft.flare.aggregator.PIAAggregator",
    "fedpeft.flare.controller.FederationController",
    "fedpeft.flare.executor.SiteExecutor",
    "fedpeft.flare.filters.AdapterOnly",
    "fedpeft.flare.filters.RememberOrder",
    "fedpeft.flare.persistor.SafetensorsPersistor",
)
KEY = "class_allow_list"
RESOURCES, LOG_CONFIG, PRIVACY = "resources.json", "log_config.json", "privacy.json"


def resources() -> dict[str, Any]:
    """FLARE's own allow-list with fedpeft's components appended, enforced.

    Each is named: FLARE calls whatever a listed name leads to, and a prefix would let a job call any function of the
    package, the command line included.
    """
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    return {
        "format_version": 2,
        KEY: [*DEFAULT_CLASS_ALLOW_LIST, *COMPONENTS],
        "class_list_enforcement_mode": "enforce",
    }


def log_config() -> dict[str, Any]:
    """FLARE's own logging, with only fedpeft's lines and warnings on the console; the log files keep everything."""
    from nvflare.fuel.utils.log_utils import default_log_dict

    config = copy.deepcopy(default_log_dict)
    config["filters"]["fedpeft"] = {
        "()": "nvflare.fuel.utils.log_utils.LoggerNameFilter",
        "logger_names": ["fedpeft"],
    }
    config["formatters"]["consoleFormatter"] = {
        "()": "nvflare.fuel.utils.log_utils.BaseFormatter",
        "fmt": "%(asctime)s %(message)s",
        "datefmt": "%H:%M:%S",
    }
    config["handlers"]["consoleHandler"]["filters"] = ["fedpeft"]
    return config


def seed(workspace: Path) -> None:
    """Let a simulator workspace load fedpeft's classes; what its `local/` already says is kept.

    Raises:
        FedpeftError: `local/resources.json` is there and is no JSON object, or the folder holds something else than a
            workspace: the simulator would delete it.
    """
    local = workspace / "local"
    known = any((local / name).is_file() for name in (RESOURCES, PRIVACY))
    if workspace.exists() and any(workspace.iterdir()) and not known:
        raise FedpeftError(
            f"{workspace} is not empty and no simulator workspace, and the simulator deletes what is in its workspace: "
            f"name a new folder with -w."
        )
    local.mkdir(parents=True, exist_ok=True)
    write_json(local / RESOURCES, _with_components(local / RESOURCES))
    if not (local / LOG_CONFIG).exists():
        write_json(local / LOG_CONFIG, log_config())


def _with_components(file: Path) -> dict[str, Any]:
    wanted = resources()
    if not file.exists():
        return wanted
    try:
        present = json.loads(file.read_text())
        listed = present.get(KEY, wanted[KEY])
    except (ValueError, AttributeError) as error:
        raise FedpeftError(f"{file} is no JSON object ({error}): mend or remove it.") from error
    return {**wanted, **present, KEY: [*listed, *(name for name in COMPONENTS if name not in listed)]}

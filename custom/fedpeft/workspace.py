# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""What a participant needs under `local/`: the list of classes that a job may load, and what checks a job before that.

FLARE loads only listed classes for a job that brings no code of its own.
"""

from __future__ import annotations

import copy
import json
import shlex
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
GUARDS = {  # entries of `components` in a start-up kit: see fedpeft.flare.admission_components
    "server": {"id": "job_admission", "path": "fedpeft.flare.admission_components.SubmissionGuard", "args": {}},
    "site": {"id": "app_deployer", "path": "fedpeft.flare.admission_components.AdmittedAppDeployer", "args": {}},
}
KEY = "class_allow_list"
EXIT_CODE = "_process_rc.txt"  # the simulator's own file, which a run that is killed leaves behind
KIT = ("fed_admin.json", "fed_client.json", "fed_server.json")  # what only a start-up kit has
RESOURCES, LOG_CONFIG, PRIVACY = "resources.json", "log_config.json", "privacy.json"


def resources() -> dict[str, Any]:
    """An allow-list of fedpeft's components alone, enforced.

    Each is named: FLARE calls whatever a listed name leads to, and a prefix would let a job call any function of the
    package, the command line included. The list replaces FLARE's own, whose classes write files, open connections or
    pass by a site's filters; it holds for jobs only.
    """
    return {
        "format_version": 2,
        KEY: list(COMPONENTS),
        "class_list_enforcement_mode": "enforce",
    }


def listed_classes(workspace: Path) -> tuple[str, ...]:
    """The allow-list of a simulator workspace; none where the file is missing or damaged."""
    try:
        listed = json.loads((workspace / "local" / RESOURCES).read_text())[KEY]
        return tuple(name for name in listed if isinstance(name, str))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


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


def check_place(workspace: Path, job: Path) -> None:
    """Whether the simulator may have a folder: it deletes what is in it, and reads its path as words of a command.

    Args:
        workspace: the folder, without symbolic links; it need not be there.
        job: the job's folder.

    Raises:
        FedpeftError: it holds something else than a simulator's workspace, or cannot be one.
    """
    if shlex.split(str(workspace), comments=True) != [str(workspace)]:
        raise FedpeftError(
            f"the workspace {str(workspace)!r} has a blank, a quote or the like in its path, which the simulator "
            f"cannot handle: name another folder with -w."
        )
    if Path.cwd().is_relative_to(workspace):
        raise FedpeftError(
            f"the simulator replaces its workspace {workspace}, the current folder: name another with -w."
        )
    job = job.resolve()
    if job.is_relative_to(workspace) or workspace.is_relative_to(job):
        raise FedpeftError(
            f"one of the job {job} and the workspace {workspace} lies in the other, and the simulator deletes what is "
            f"in its workspace: name another folder with -w."
        )
    if not workspace.exists():
        return
    if not workspace.is_dir():
        raise FedpeftError(f"the workspace {workspace} is a file: name a folder with -w.")
    if (stranger := _stranger(workspace)) is not None:
        raise FedpeftError(
            f"{workspace} is not empty and no simulator workspace (it holds {stranger}), and the simulator deletes "
            f"what is in its workspace: name a new folder with -w."
        )


def _stranger(workspace: Path) -> str | None:
    """Something in a folder that no simulator has put there."""
    entries = sorted(entry for entry in workspace.iterdir() if entry.name not in ("local", "startup"))
    if kit := [name for name in KIT if (workspace / "startup" / name).exists()]:
        return f"startup/{kit[0]}"
    if any((workspace / "local" / name).is_file() for name in (RESOURCES, PRIVACY)):
        entries = [entry for entry in entries if entry.name != EXIT_CODE and not _of_participant(entry)]
    return entries[0].name if entries else None


def _of_participant(path: Path) -> bool:
    """Whether the simulator has made a folder for its server or one of its sites."""
    if path.is_symlink() or not path.is_dir():
        return False
    return any((path / name).is_dir() for name in ("simulate_job", "local", "startup")) or not any(path.iterdir())


def seed(workspace: Path) -> None:
    """Let a simulator workspace load fedpeft's classes; what its `local/` already says is kept.

    Raises:
        FedpeftError: `local/resources.json` is there and is no JSON object, or the folder cannot be written to.
    """
    local = workspace / "local"
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

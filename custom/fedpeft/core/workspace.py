# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""FLARE's folders: the names of a run's files, the list of classes in a workspace's `local/`, and start-up kits.

A start-up kit belongs to one participant; `nvflare provision` or `nvflare poc prepare` writes it.
"""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.core.files import read_json, write_json

MANIFEST = "manifest.json"  # the server writes it last
HISTORY = "history.json"
GLOBAL_ADAPTER = "global.safetensors"
PROBLEM = "problem.json"  # of a site
OF_SIMULATOR = Path("simulate_job") / "fedpeft"  # the run's folder at the server or a site of a simulator's workspace
DATA_VARIABLE, STATE_VARIABLE = "FEDPEFT_DATA", "FEDPEFT_STATE"


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
RESOURCES, LOG_CONFIG, PRIVACY = "resources.json", "log_config.json", "privacy.json"
SERVER, SITE, ADMIN, RELAY = "server", "site", "admin", "relay"
RELAY_FILE = "relay__resources.json"  # of a site that connects to a relay
KIT_FILES = {SERVER: "fed_server.json", SITE: "fed_client.json", ADMIN: "fed_admin.json"}  # what only a kit has
UNSECURED = "clear"


def resources() -> dict[str, Any]:
    """Return an enforced allow-list that holds fedpeft's components only.

    Each is named in full: FLARE calls whatever a listed name leads to, and a prefix would let a job call any function
    of the package, the command line included. The list replaces FLARE's own, whose classes write files, open
    connections or bypass a site's filters; it applies only to jobs.
    """
    return {"format_version": 2, KEY: list(COMPONENTS), "class_list_enforcement_mode": "enforce"}


def listed_classes(workspace: Path) -> tuple[str, ...]:
    """Return the allow-list of a simulator workspace; empty if the file is missing or damaged."""
    try:
        listed = read_json(workspace / "local" / RESOURCES)[KEY]
        return tuple(name for name in listed if isinstance(name, str))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def log_config() -> dict[str, Any]:
    """Return FLARE's logging configuration with only fedpeft's lines on the console; the log files keep everything."""
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
    """Check that the simulator can use a folder: it deletes what is in it, and splits its path like a command line."""
    try:
        parts = shlex.split(str(workspace), comments=True)
    except ValueError:  # an odd quote
        parts = []
    if parts != [str(workspace)]:
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
            f"one of the job {job} and the workspace {workspace} is inside the other, and the simulator deletes what "
            f"is in its workspace: name another folder with -w."
        )
    if not workspace.exists():
        return
    if not workspace.is_dir():
        raise FedpeftError(f"the workspace {workspace} is a file: name a folder with -w.")
    if (entry := _unexpected_entry(workspace)) is not None:
        raise FedpeftError(
            f"{workspace} is not empty and not a simulator workspace (it holds {entry}), and the simulator deletes "
            f"what is in its workspace: name a new folder with -w."
        )


def _unexpected_entry(workspace: Path) -> str | None:
    """Return the name of an entry of a workspace that the simulator did not write, or None."""
    entries = sorted(entry for entry in workspace.iterdir() if entry.name not in ("local", "startup"))
    if kit := [name for name in KIT_FILES.values() if (workspace / "startup" / name).exists()]:
        return f"startup/{kit[0]}"
    if any((workspace / "local" / name).is_file() for name in (RESOURCES, PRIVACY)):
        entries = [entry for entry in entries if entry.name != EXIT_CODE and not _is_participants(entry)]
    return entries[0].name if entries else None


def _is_participants(path: Path) -> bool:
    """Return whether a folder is the simulator's, for its server or one of its sites."""
    if path.is_symlink() or not path.is_dir():
        return False
    return any((path / name).is_dir() for name in ("simulate_job", "local", "startup")) or not any(path.iterdir())


def seed(workspace: Path) -> None:
    """Let a simulator workspace load fedpeft's classes; settings already in its `local/` are kept."""
    local = workspace / "local"
    write_json(local / RESOURCES, _add_components(local / RESOURCES))
    if not (local / LOG_CONFIG).exists():
        write_json(local / LOG_CONFIG, log_config())


def _add_components(file: Path) -> dict[str, Any]:
    required = resources()
    if not file.exists():
        return required
    try:
        present = read_json(file)
        listed = list(present.get(KEY, required[KEY]))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise FedpeftError(f"{file} is not a JSON object ({error}): correct or remove it.") from error
    return {**required, **present, KEY: [*listed, *(name for name in COMPONENTS if name not in listed)]}


def chosen_state() -> Path | None:
    """Return the folder that FEDPEFT_STATE names; None: it names none."""
    if not (chosen := os.environ.get(STATE_VARIABLE)):
        return None
    folder = Path(os.path.expanduser(chosen))
    if str(folder).startswith("~"):
        raise FedpeftError(f"{STATE_VARIABLE} is {chosen!r:.80}, of an unknown user: name the whole path of a folder.")
    return folder


@dataclass(frozen=True, kw_only=True)
class Kit:
    """A start-up kit: its participant, and where the server is, or for a site behind one the relay."""

    folder: Path  # holds `startup/` and `local/`
    role: str  # server, site or admin
    name: str
    host: str
    port: int
    scheme: str = ""  # http, grpc or tcp
    secured: bool = True
    upstream: str = SERVER  # what the participant connects to: the server, or a relay

    @property
    def certificate(self) -> Path:
        """The participant's own certificate."""
        return self.folder / "startup" / ("server.crt" if self.role == SERVER else "client.crt")

    @property
    def key(self) -> Path:
        """The private key of the certificate."""
        return self.certificate.with_suffix(".key")

    @property
    def root(self) -> Path:
        """The certificate of the consortium's authority."""
        return self.folder / "startup" / "rootCA.pem"

    @property
    def resources_file(self) -> Path:
        """The file that FLARE reads: `resources.json`, or else the default one of the kit."""
        names = (RESOURCES, f"{RESOURCES}.default")
        for name in names:
            if (file := self.folder / "local" / name).is_file():
                return file
        raise FedpeftError(f"{self.folder / 'local'} has neither {' nor '.join(names)}: unpack the kit again.")

    def resources(self) -> dict[str, Any]:
        """The content of the participant's resources.json."""
        return read_object(self.resources_file)


MAX_PORT = 2**16 - 1


def components_of(resources: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the components that a resources.json names, as far as they have FLARE's form."""
    components = resources.get("components")
    return [entry for entry in components if isinstance(entry, Mapping)] if isinstance(components, list) else []


def read_kit(folder: Path) -> Kit:
    """Read a kit from its folder, or from the `startup/` folder in it."""
    folder = folder.parent if folder.name == "startup" else folder
    kinds = [kind for kind, name in KIT_FILES.items() if (folder / "startup" / name).is_file()]
    if not kinds:
        raise FedpeftError(
            f"{folder} is not a start-up kit, its startup/ has none of {', '.join(KIT_FILES.values())}: name the "
            f"participant's folder that `nvflare provision` wrote."
        )
    role = kinds[0]
    file = folder / "startup" / KIT_FILES[role]
    content = read_object(file)
    upstream = SERVER
    try:
        if role == ADMIN:
            own = content["admin"]
            name, host, port = own["username"], own["host"], own["port"]
            scheme = own.get("scheme", "")
        else:
            server = content["servers"][0]
            own = content["client"] if role == SITE else server
            name = own["fqsn"].split(".")[-1] if role == SITE else own["admin_server"]
            host, _, port = server["service"]["target"].rpartition(":")
            scheme = server["service"].get("scheme", "")
        if role == SITE and (relay := folder / "local" / RELAY_FILE).is_file():  # the server's address does not count
            file, upstream = relay, RELAY
            own = read_object(file)["relay_config"]
            (host, _, port), scheme = own["address"].rpartition(":"), own.get("scheme", "")
        host.encode("idna")
        if not 1 <= int(port) <= MAX_PORT:
            raise ValueError(f"port {port!r:.20}")
        secured = own.get("connection_security") != UNSECURED
        return Kit(
            folder=folder,
            role=role,
            name=name,
            host=host,
            port=int(port),
            scheme=scheme.lower(),
            secured=secured,
            upstream=upstream,
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        missing, remedy = "the participant and the server", "unpack the kit again"
        if upstream == RELAY:
            missing, remedy = "the relay", "take this file from the kit again"
        raise FedpeftError(f"{file} does not name {missing} ({error!r}): {remedy}.") from error


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file."""
    try:
        content = read_json(file)
    except FileNotFoundError as error:
        raise FedpeftError(f"{file} is missing: restore it.") from error
    except (OSError, ValueError) as error:
        raise FedpeftError(f"{file} cannot be read as JSON ({error}): correct or restore it.") from error
    if not isinstance(content, dict):
        raise FedpeftError(f"{file} must be a JSON object, not {type(content).__name__}: correct or restore it.")
    return content

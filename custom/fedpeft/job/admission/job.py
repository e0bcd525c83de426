# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""Admit only jobs of the form that `fedpeft.job.composing` writes.

This is an allow-list, not a list of dangers: FLARE reads many kinds of components, files and variables from a job, and
several of them read files or variables of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedpeft.core.errors import FedpeftError
from fedpeft.job.admission.archive import read_archive, read_folder
from fedpeft.job.admission.meta import APP, BOOKKEEPING, META, admit_meta
from fedpeft.job.admission.refusal import AdmissionError
from fedpeft.job.admission.shape import check_keys, check_list, is_whole, wrong
from fedpeft.job.admission.strict_json import check_texts, parse, short
from fedpeft.job.admission.values import check_flare, check_values
from fedpeft.job.composing import AGGREGATOR, ARGUMENTS, CONTROLLER, EXECUTOR, ORDERS, PERSISTOR, FlareSettings

CONFIGURATIONS = {"server": "config/config_fed_server.json", "client": "config/config_fed_client.json"}
FILES = (META, *(f"{APP}/{name}" for name in CONFIGURATIONS.values()))
_FOLDER = re.compile(r"[^./\\{}][^/\\{}]{0,99}")
_COMMON = ("format_version", "task_data_filters", "task_result_filters", "components")
_OWN = {"server": ("server", "workflows"), "client": ("executors",)}
_COMPONENTS = {"server": (PERSISTOR, AGGREGATOR), "client": ()}
_SERVER = "task_request_interval"
# FLARE takes an object with one of these keys, at any depth, for a component, or for none whatever else it has
_BUILDS_A_CLASS = ("path", "class_path", "config_type", "args")
_BY_NAME = "name"  # and one with this key, where the value is the name of one of its classes, as `FedAvg`


@dataclass(frozen=True, kw_only=True)
class AdmittedJob:
    """The three files of a job, parsed."""

    meta: Mapping[str, Any]
    server: Mapping[str, Any]
    client: Mapping[str, Any]


def admit_folder(folder: Path, *, classes: Sequence[str] = ()) -> AdmittedJob:
    """Check a job folder.

    Args:
        folder: as `fedpeft jobs` writes it; it may contain FLARE's signatures.
        classes: additional classes of this machine's allow-list, for tests and experiments in the simulator; an entry
            that ends with a period stands for everything below it.

    Raises:
        AdmissionError: the job is not admitted; the message says why.
        FedpeftError: the folder is not a job folder.
    """
    if not (folder / META).is_file():
        raise FedpeftError(
            f"{folder} is not a FLARE job folder, it has no meta.json: name one of jobs/, which `fedpeft jobs` writes."
        )
    return _admit(read_folder(folder, FILES), f"{folder}/", classes)


def admit_submission(data: bytes, folder: str) -> AdmittedJob:
    """Check a submitted archive.

    Args:
        data: the zip archive.
        folder: name of the job folder, the only one at the top of the archive.

    Raises:
        AdmissionError: the job is not admitted; the message says why.
    """
    if not isinstance(folder, str) or not _FOLDER.fullmatch(folder) or not folder.isprintable():
        raise AdmissionError(f"the job's folder is {short(folder)}: give it a plain name.", reason="archive")
    return _admit(read_archive(data, FILES, root=folder), "", ())


def admit_app(data: bytes, app: str, meta: Mapping[str, Any]) -> None:
    """Check an app that a server deploys at a site.

    Args:
        data: the zip archive of the app folder.
        app: its name.
        meta: the job's meta.json, with the fields that the server added.

    Raises:
        AdmissionError: the job is not admitted; the message says why.
    """
    if app != APP:
        raise AdmissionError(f"the app is {short(app)}: name it {APP!r}.", reason="file")
    if not isinstance(meta, Mapping):
        raise AdmissionError(f"meta.json is {short(meta)}, not an object: submit the job again.", reason="meta")
    admit_meta({key: value for key, value in meta.items() if key not in BOOKKEEPING})
    files = read_archive(data, tuple(CONFIGURATIONS.values()))
    for role, name in CONFIGURATIONS.items():
        admit_configuration(role, parse(files[name], name), name)


def admit_configuration(role: str, configuration: Mapping[str, Any], file: str, classes: Sequence[str] = ()) -> None:
    """Check one parsed configuration.

    Args:
        role: server or client.
        configuration: content of the file.
        file: its name, for messages.
        classes: as for `admit_folder`.
    """
    check_texts(configuration, file)
    timeouts = tuple(field.name for field in fields(FlareSettings) if field.name != _SERVER)
    check_keys(configuration, (*_COMMON, *_OWN[role], *timeouts), file, required=(*_COMMON, *_OWN[role]))
    if configuration["format_version"] != 2 or not is_whole(configuration["format_version"]):
        raise wrong(file, "format_version", configuration["format_version"], "2", reason="shape")
    for name in ("task_data_filters", "task_result_filters"):
        if configuration[name] != []:
            raise wrong(file, name, configuration[name], "an empty list", reason="shape")
    for component in check_list(configuration["components"], file, "components"):
        _component(component, f"{file}: components", classes, ("id", "path", "args"), _COMPONENTS[role])
    if role == "server":
        check_keys(configuration["server"], (_SERVER,), f"{file}: server", required=(_SERVER,))
        check_flare({**configuration, **configuration["server"]}, file)
        (workflow,) = check_list(configuration["workflows"], file, "workflows", length=1)
        _component(workflow, f"{file}: workflows", classes, ("id", "path", "args"), (CONTROLLER,))
    else:
        check_flare(configuration, file)
        (entry,) = check_list(configuration["executors"], file, "executors", length=1)
        check_keys(entry, ("tasks", "executor"), f"{file}: executors", required=("tasks", "executor"))
        if entry["tasks"] != list(ORDERS):
            raise wrong(file, "tasks", entry["tasks"], f"{list(ORDERS)}", reason="shape")
        _component(entry["executor"], f"{file}: executors", classes, ("path", "args"), (EXECUTOR,))


def _admit(files: Mapping[str, bytes], where: str, classes: Sequence[str]) -> AdmittedJob:
    parsed = {name: parse(files[name], f"{where}{name}") for name in FILES}
    admit_meta(parsed[META], f"{where}{META}")
    both = {role: parsed[f"{APP}/{name}"] for role, name in CONFIGURATIONS.items()}
    for role, name in CONFIGURATIONS.items():
        admit_configuration(role, both[role], f"{where}{APP}/{name}", classes)
    (workflow,), (entry,) = both["server"]["workflows"], both["client"]["executors"]
    components = (*both["server"]["components"], workflow, entry["executor"])
    check_values([one["args"] for one in components], parsed[META]["deploy_map"][APP])
    return AdmittedJob(meta=parsed[META], **both)


def _component(entry: Any, where: str, classes: Sequence[str], names: Sequence[str], ours: Sequence[str]) -> None:
    check_keys(entry, names, where, required=names)
    path, arguments = entry["path"], entry["args"]
    if not all(isinstance(entry[key], str) and entry[key] for key in names if key != "args"):
        raise AdmissionError(
            f"{where}: id and path must be texts: write the job again with `fedpeft jobs`.", reason="shape"
        )
    if path not in ours:
        if not any(path == name or (name.endswith(".") and path.startswith(name)) for name in classes):
            raise AdmissionError(f"{where}: {short(path)} is not a component of a job: remove it.", reason="class")
        return
    check_keys(arguments, ARGUMENTS[path], f"{where}: args")
    for name, value in arguments.items():
        if name != "job":
            check_keys(value, None, f"{where}: {name}")
            _refuse_classes(value, f"{where}: {name}")
        elif not isinstance(value, str):
            raise AdmissionError(f"{where}: {name} is {short(value)}: make it a text.", reason="shape")


def _refuse_classes(value: Any, where: str) -> None:
    """Refuse what FLARE would read as a component, as deep as FLARE looks: when it builds the job, that ends it."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inner:
        if key in _BUILDS_A_CLASS:
            raise AdmissionError(f"{where} has a key {key!r}: remove it.", reason="shape")
        if key == _BY_NAME and isinstance(entry, str) and entry[:1].isupper():
            raise AdmissionError(
                f"{where} has a name {short(entry)}, which FLARE reads as that of a class: write names in lower case.",
                reason="shape",
            )
        _refuse_classes(entry, f"{where}.{key}")
